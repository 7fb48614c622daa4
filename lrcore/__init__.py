"""Low-rank compression of transformer language models: the public API.

model = lrcore.load("demo-llama")
small = lrcore.compress(model, lrcore.Recipe(method="a3", ratio=0.2))
print(lrcore.evaluate(small, "stories", samples=32).perplexity)
"""

from .account import ModelAccount, Planned, SizeAndCost
from .analyse import Analysis, analyse
from .calibration.calibrate import Calibration, calibrate
from .checkpoints.card import Usage, model_card
from .checkpoints.checkpoint import load, save
from .checkpoints.export import export, push
from .checkpoints.stock import stock_fit
from .compression.allocate import allocate
from .compression.bounds import bounds
from .compression.compress import compress, prepare, refits
from .compression.evidence.probes import probe
from .compression.evidence.table import evidence_key, measure_evidence
from .compression.evidence.table import evidence_of as _evidence_of
from .compression.factorise import Factorisation, factorise
from .compression.healing.healing import Healing, heal
from .compression.quantise import quantise
from .compression.shortening.shorten import drop_layers, shorten
from .compression.slicing.slicing import slice_hidden, sliced_size
from .data import BUILTIN
from .errors import Cancelled, InputError
from .evaluation.answers import answers, answers_csv, in_turns, read_prompts
from .evaluation.compare import Comparison, compare
from .evaluation.contributions import Contributions, contributions
from .evaluation.cost import ModelCost, Speed, measure_cost, measure_speed
from .evaluation.evaluate import Evaluation, evaluate, token_losses
from .evaluation.local_errors import LocalErrors, local_errors
from .evaluation.protocols import PROTOCOLS, EvaluationSettings
from .evaluation.tasks import BUILTIN_TASKS, LM_EVAL_TASKS, TaskResult, lm_eval, score_choices
from .generate import GenerationSettings, generate, stream
from .history import (
    Compressed,
    Healed,
    Quantised,
    Shortened,
    Sliced,
    Step,
    StockFit,
    last_step,
    stock_of,
)
from .may_follow import MAY_FOLLOW, refusal
from .methods import METHODS
from .models.load import DEMO_MODELS, LoadedModel
from .plan import RankPlan
from .policies import POLICIES
from .progress import Progress
from .provenance import BaseModel, Provenance
from .recipe import BUDGETS, Recipe
from .runs.differences import differences
from .runs.runs import Run, Runs
from .runs.runs import root as runs_root
from .runs.sweep import Sweep, cross_calibration
from .runs.sweep_engine import run_sweep
from .runs.sweep_page import tables as sweep_tables
from .runs.sweep_rows import SweepRow
from .runs.sweep_store import Cell, CellFiles, SweepStore
from .runs.tracking import Tracker

DATASETS = tuple(BUILTIN)

__version__ = "0.1.0"


def methods() -> list[dict]:
    """Every method: name, paper, components, supports, notes."""
    return [method.describe() for method in METHODS.values()]


def policies() -> list[dict]:
    """Every allocation policy: name, summary, whether it reads a temperature, its options, the
    evidence it needs, and whether that serves one budget alone.
    """
    return [
        policy.describe() | {"one_budget": _evidence_of(policy.name).one_budget}
        for policy in POLICIES.values()
    ]


__all__ = [
    "BUDGETS",
    "BUILTIN_TASKS",
    "DATASETS",
    "DEMO_MODELS",
    "LM_EVAL_TASKS",
    "MAY_FOLLOW",
    "PROTOCOLS",
    "Analysis",
    "BaseModel",
    "Calibration",
    "Cancelled",
    "Cell",
    "CellFiles",
    "Comparison",
    "Compressed",
    "Contributions",
    "Evaluation",
    "EvaluationSettings",
    "Factorisation",
    "GenerationSettings",
    "Healed",
    "Healing",
    "InputError",
    "LoadedModel",
    "LocalErrors",
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
    "Shortened",
    "SizeAndCost",
    "Sliced",
    "Speed",
    "Step",
    "StockFit",
    "Sweep",
    "SweepRow",
    "SweepStore",
    "TaskResult",
    "Tracker",
    "Usage",
    "allocate",
    "analyse",
    "answers",
    "answers_csv",
    "bounds",
    "calibrate",
    "compare",
    "compress",
    "contributions",
    "cross_calibration",
    "differences",
    "drop_layers",
    "evaluate",
    "evidence_key",
    "export",
    "factorise",
    "generate",
    "heal",
    "in_turns",
    "last_step",
    "lm_eval",
    "load",
    "local_errors",
    "measure_cost",
    "measure_evidence",
    "measure_speed",
    "methods",
    "model_card",
    "policies",
    "prepare",
    "probe",
    "push",
    "quantise",
    "read_prompts",
    "refits",
    "refusal",
    "run_sweep",
    "runs_root",
    "save",
    "score_choices",
    "shorten",
    "slice_hidden",
    "sliced_size",
    "stock_fit",
    "stock_of",
    "stream",
    "sweep_tables",
    "token_losses",
]
