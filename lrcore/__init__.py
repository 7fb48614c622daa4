"""Low-rank compression of transformer language models: the public API.

model = lrcore.load("demo-llama")
small = lrcore.compress(model, lrcore.Recipe(method="a3", ratio=0.2))
print(lrcore.evaluate(small, "stories", samples=32).perplexity)
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Read when torch is imported. By default its threads wait for each other for long without giving up
# their core: with another process on it, what runs there takes several times as long. Giving it up
# at once is as bad where nothing else runs: a thread that sleeps takes longer to wake than a small
# product does. So they spin for some 0.2 ms first, on Linux (`scripts/benchmarks.py threads`).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Read when the hub's client is imported: with every question it would tell the hub the libraries
# and the program that it runs in, and ask for a list of programs first.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from .account import ModelAccount, Planned, SizeAndCost
    from .analyse import Analysis, analyse
    from .as_json import json_text
    from .calibration.calibrate import Calibration, calibrate
    from .calibration.preview import text_head
    from .cancellation import cancellable
    from .checkpoints.card import Usage, model_card
    from .checkpoints.checkpoint import load, save
    from .checkpoints.export import Exported, export, export_for, push
    from .checkpoints.fitting import check_target
    from .checkpoints.gguf_file import GgufFile, export_gguf
    from .checkpoints.mla import MlaFolder, export_mla
    from .checkpoints.stock import stock_fit
    from .cluster.ray_engine import on_cluster
    from .compression.allocate import allocate
    from .compression.bounds import bounds
    from .compression.chain import ChainStep
    from .compression.compress import check_recipe, compress, prepare
    from .compression.evidence.pace import seconds_per_token
    from .compression.evidence.probes import probe
    from .compression.evidence.table import (
        evidence_key,
        evidence_tokens,
        measure_evidence,
        with_kept_probes,
    )
    from .compression.expert_pruning.prune import prune_experts
    from .compression.expert_pruning.settings import ExpertPruning
    from .compression.factorise import Factorisation, factorise, method_options
    from .compression.healing.healing import heal
    from .compression.healing.settings import Healing
    from .compression.merge_factors import merge_factors
    from .compression.predicted import CurvePoint, predicted_curve
    from .compression.quantise import quantise
    from .compression.settle import settle
    from .compression.share import share_bases, shared_size
    from .compression.shortening.shorten import drop_layers, shorten
    from .compression.slicing.slicing import slice_hidden, sliced_size
    from .compression.sparsify import sparsify
    from .compression.write import refits
    from .data import DATASETS, write_texts
    from .data.questions import BUILTIN_TASKS
    from .errors import Cancelled, InputError, Shortage
    from .evaluation.answers import answers, answers_csv, in_turns, read_prompts
    from .evaluation.compare import Comparison, compare
    from .evaluation.contributions import Contributions, contributions
    from .evaluation.cost import ModelCost, Speed, measure_cost, measure_speed
    from .evaluation.evaluate import Evaluation, check_evaluation, evaluate, token_losses
    from .evaluation.local_errors import LocalErrors, local_errors
    from .evaluation.settings import PROTOCOLS, EvaluationSettings
    from .evaluation.tasks import LM_EVAL_TASKS, TaskResult, lm_eval, score_choices
    from .files import folder_of_this_process, process_runs, remove_leftovers, write_text
    from .generate import generate, stream
    from .generation_settings import GenerationSettings
    from .hardware import Hardware, hardware
    from .history import (
        Compressed,
        ExpertsPruned,
        Healed,
        Quantised,
        SharedBases,
        Shortened,
        Sliced,
        Sparsified,
        Step,
        StockFit,
        last_step,
        stock_of,
    )
    from .may_follow import MAY_FOLLOW, refusal
    from .methods import METHODS as METHODS
    from .models.load import DEMO_MODELS, LoadedModel, built_in_models
    from .models.quantised_cache import quantised_cache, quantised_kv_bytes
    from .models.structure import forms_of
    from .notebooks import progress_bar
    from .places import confine, without_paths
    from .plan import RankPlan
    from .policies import POLICIES as POLICIES
    from .progress import Progress
    from .provenance import BaseModel, Provenance
    from .recipe import BUDGETS, Recipe
    from .runs.database import is_date
    from .runs.differences import differences
    from .runs.runs import Run, Runs
    from .runs.runs import root as runs_root
    from .runs.shipped import shipped_sweeps
    from .runs.sweep import Sweep, cross_calibration
    from .runs.sweep_engine import run_sweep
    from .runs.sweep_page import tables as sweep_tables
    from .runs.sweep_rows import SweepRow
    from .runs.sweep_store import Cell, CellFiles, SweepStore
    from .runs.tracking import Tracker
    from .shortage import shortage
    from .targets import TARGETS, Target
    from .what_if import SHAPES, WhatIf, what_if

__version__ = "0.1.0"

# Where each public name is, as `name` or `name=its name there`: a module is imported when the first
# of its names is read, so that `import lrcore` takes no time.
_HOMES = {
    "account": "ModelAccount Planned SizeAndCost",
    "analyse": "Analysis analyse",
    "as_json": "json_text",
    "calibration.calibrate": "Calibration calibrate",
    "calibration.preview": "text_head",
    "checkpoints.card": "Usage model_card",
    "checkpoints.checkpoint": "load save",
    "checkpoints.export": "Exported export export_for push",
    "checkpoints.fitting": "check_target",
    "checkpoints.gguf_file": "GgufFile export_gguf",
    "checkpoints.mla": "MlaFolder export_mla",
    "checkpoints.stock": "stock_fit",
    "cluster.ray_engine": "on_cluster",
    "compression.allocate": "allocate",
    "compression.bounds": "bounds",
    "compression.chain": "ChainStep",
    "compression.compress": "check_recipe compress prepare",
    "compression.evidence.probes": "probe",
    "compression.evidence.pace": "seconds_per_token",
    "compression.evidence.table": "evidence_key evidence_tokens measure_evidence with_kept_probes",
    "compression.expert_pruning.prune": "prune_experts",
    "compression.expert_pruning.settings": "ExpertPruning",
    "compression.factorise": "Factorisation factorise method_options",
    "compression.healing.healing": "heal",
    "compression.healing.settings": "Healing",
    "compression.merge_factors": "merge_factors",
    "compression.predicted": "CurvePoint predicted_curve",
    "compression.quantise": "quantise",
    "compression.settle": "settle",
    "compression.share": "share_bases shared_size",
    "compression.shortening.shorten": "drop_layers shorten",
    "compression.slicing.slicing": "slice_hidden sliced_size",
    "compression.sparsify": "sparsify",
    "compression.write": "refits",
    "data": "DATASETS write_texts",
    "data.questions": "BUILTIN_TASKS",
    "errors": "Cancelled InputError Shortage",
    "evaluation.answers": "answers answers_csv in_turns read_prompts",
    "evaluation.compare": "Comparison compare",
    "evaluation.contributions": "Contributions contributions",
    "evaluation.cost": "ModelCost Speed measure_cost measure_speed",
    "evaluation.evaluate": "Evaluation check_evaluation evaluate token_losses",
    "evaluation.local_errors": "LocalErrors local_errors",
    "evaluation.settings": "PROTOCOLS EvaluationSettings",
    "evaluation.tasks": "LM_EVAL_TASKS TaskResult lm_eval score_choices",
    "files": "folder_of_this_process process_runs remove_leftovers write_text",
    "generate": "generate stream",
    "generation_settings": "GenerationSettings",
    "hardware": "Hardware hardware",
    "history": "Compressed ExpertsPruned Healed Quantised SharedBases Shortened Sliced Sparsified "
    "Step StockFit last_step stock_of",
    "may_follow": "MAY_FOLLOW refusal",
    "methods": "METHODS",
    "cancellation": "cancellable",
    "models.load": "DEMO_MODELS LoadedModel built_in_models",
    "models.quantised_cache": "quantised_cache quantised_kv_bytes",
    "models.structure": "forms_of",
    "notebooks": "progress_bar",
    "places": "confine without_paths",
    "plan": "RankPlan",
    "policies": "POLICIES",
    "progress": "Progress",
    "provenance": "BaseModel Provenance",
    "recipe": "BUDGETS Recipe",
    "runs.database": "is_date",
    "runs.differences": "differences",
    "runs.runs": "Run Runs runs_root=root",
    "runs.shipped": "shipped_sweeps",
    "runs.sweep": "Sweep cross_calibration",
    "runs.sweep_engine": "run_sweep",
    "runs.sweep_page": "sweep_tables=tables",
    "runs.sweep_rows": "SweepRow",
    "runs.sweep_store": "Cell CellFiles SweepStore",
    "runs.tracking": "Tracker",
    "shortage": "shortage",
    "targets": "TARGETS Target",
    "what_if": "SHAPES WhatIf what_if",
}
_HOME = {
    public: (module, own or public)
    for module, names in _HOMES.items()
    for public, _, own in (name.partition("=") for name in names.split())
}


def methods() -> list[dict]:
    """Every method: name, paper, components, supports, notes."""
    from .methods import METHODS

    return [method.describe() for method in METHODS.values()]


def policies() -> list[dict]:
    """Every allocation policy: name, summary, whether it reads a temperature, its options, the
    evidence it needs, whether that serves one budget alone, and whether its ranks are measured
    against uniform ones before they are given.
    """
    from .compression.evidence.table import evidence_of
    from .policies import POLICIES

    return [
        policy.describe() | {"one_budget": evidence_of(policy.name).one_budget}
        for policy in POLICIES.values()
    ]


class _Package(ModuleType):
    """The package. A module in it takes no public name's place: importing `lrcore/generate.py`
    would set `lrcore.generate`, which is the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in __all__):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

if not TYPE_CHECKING:  # a type checker reads the imports above

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            module, own = _HOME[name]
            value = getattr(import_module(f".{module}", __name__), own)
        elif name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        else:
            value = _module(name)
        globals()[name] = value
        return value


def _module(name: str) -> ModuleType:
    """A module of the package, for `lrcore.errors.InputError` without an import of its own."""
    try:
        return import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    """With the public names that have not been read yet."""
    return sorted({*globals(), *_HOME})


__all__ = [
    "BUDGETS",
    "BUILTIN_TASKS",
    "DATASETS",
    "DEMO_MODELS",
    "LM_EVAL_TASKS",
    "MAY_FOLLOW",
    "PROTOCOLS",
    "SHAPES",
    "TARGETS",
    "Analysis",
    "BaseModel",
    "Calibration",
    "Cancelled",
    "Cell",
    "CellFiles",
    "ChainStep",
    "Comparison",
    "Compressed",
    "Contributions",
    "CurvePoint",
    "Evaluation",
    "EvaluationSettings",
    "ExpertPruning",
    "ExpertsPruned",
    "Exported",
    "Factorisation",
    "GenerationSettings",
    "GgufFile",
    "Hardware",
    "Healed",
    "Healing",
    "InputError",
    "LoadedModel",
    "LocalErrors",
    "MlaFolder",
    "ModelAccount",
    "ModelCost",
    "Planned",
    "Progress",
    "Provenance",
    "Quantised",
    "RankPlan",
    "Recipe",
    "Run",
    "Runs",
    "SharedBases",
    "Shortage",
    "Shortened",
    "SizeAndCost",
    "Sliced",
    "Sparsified",
    "Speed",
    "Step",
    "StockFit",
    "Sweep",
    "SweepRow",
    "SweepStore",
    "Target",
    "TaskResult",
    "Tracker",
    "Usage",
    "WhatIf",
    "allocate",
    "analyse",
    "answers",
    "answers_csv",
    "bounds",
    "built_in_models",
    "calibrate",
    "cancellable",
    "check_evaluation",
    "check_recipe",
    "check_target",
    "compare",
    "compress",
    "confine",
    "contributions",
    "cross_calibration",
    "differences",
    "drop_layers",
    "evaluate",
    "evidence_key",
    "evidence_tokens",
    "export",
    "export_for",
    "export_gguf",
    "export_mla",
    "factorise",
    "folder_of_this_process",
    "forms_of",
    "generate",
    "hardware",
    "heal",
    "in_turns",
    "is_date",
    "json_text",
    "last_step",
    "lm_eval",
    "load",
    "local_errors",
    "measure_cost",
    "measure_evidence",
    "measure_speed",
    "merge_factors",
    "method_options",
    "methods",
    "model_card",
    "on_cluster",
    "policies",
    "predicted_curve",
    "prepare",
    "probe",
    "process_runs",
    "progress_bar",
    "prune_experts",
    "push",
    "quantise",
    "quantised_cache",
    "quantised_kv_bytes",
    "read_prompts",
    "refits",
    "refusal",
    "remove_leftovers",
    "run_sweep",
    "runs_root",
    "save",
    "score_choices",
    "seconds_per_token",
    "settle",
    "share_bases",
    "shared_size",
    "shipped_sweeps",
    "shortage",
    "shorten",
    "slice_hidden",
    "sliced_size",
    "sparsify",
    "stock_fit",
    "stock_of",
    "stream",
    "sweep_tables",
    "text_head",
    "token_losses",
    "what_if",
    "with_kept_probes",
    "without_paths",
    "write_text",
    "write_texts",
]
