"""Low-rank compression of transformer language models: the public API.

model = lrcore.load("demo-llama")
small = lrcore.compress(model, lrcore.Recipe(method="a3", ratio=0.2))
print(lrcore.evaluate(small, "stories", samples=32).perplexity)
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# OpenMP reads these variables when torch is imported. By default its threads spin for a long time
# while they wait, which slows every other process on the same core. Sleeping at once is as bad:
# waking a thread takes longer than a small product. So threads spin for about 0.2 ms, on Linux
# (`python -m benchmarks threads`).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The hub client reads this variable when it is imported. Without it, every request names the
# installed libraries and the calling program.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from .checkpoints.checkpoint import load, save
    from .checkpoints.export import export, push
    from .checkpoints.gguf.export_gguf import export_gguf
    from .checkpoints.mla.export_mla import export_mla
    from .compression.analyze import analyze
    from .compression.calibration.calibrate import calibrate
    from .compression.evidence.measure import measure_evidence
    from .compression.evidence.probes import probe
    from .compression.pipeline.choose_plan import choose_plan, predicted_curve
    from .compression.pipeline.compress import compress, prepare
    from .compression.pipeline.nest import compress_nested
    from .compression.solve.allocate import allocate
    from .compression.solve.factorize import factorize
    from .compression.steps.expert_pruning.prune_experts import prune_experts
    from .compression.steps.healing.healing import heal
    from .compression.steps.layer_pruning.prune_layers import drop_layers, prune_layers
    from .compression.steps.merge_factors import merge_factors
    from .compression.steps.quantize import quantize
    from .compression.steps.share import share_bases
    from .compression.steps.slicing.slicing import slice_hidden
    from .compression.steps.sparsify import sparsify
    from .compression.steps.step_settings import Healing
    from .compression.what_if import what_if
    from .data import write_texts
    from .evaluation.compare import compare
    from .evaluation.cost import measure_cost, measure_speed
    from .evaluation.evaluate import evaluate
    from .evaluation.evaluation_settings import EvaluationSettings
    from .evaluation.generate import generate, stream
    from .evaluation.tasks import score_choices
    from .models.load import LoadedModel
    from .recipes.generation_settings import GenerationSettings
    from .recipes.recipe import Recipe
    from .runs.runs import Runs
    from .runs.sweep import Sweep
    from .runs.sweep_engine import run_sweep
    from .system.errors import InputError

__version__ = "0.1.0"

# The module of every public name. A module is imported when one of its names is first read, so that
# `import lrcore` is fast and does not import torch.
_PUBLIC_NAMES = {
    "checkpoints.checkpoint": "load save",
    "checkpoints.export": "export push",
    "checkpoints.gguf.export_gguf": "export_gguf",
    "checkpoints.mla.export_mla": "export_mla",
    "compression.analyze": "analyze",
    "compression.calibration.calibrate": "calibrate",
    "compression.evidence.measure": "measure_evidence",
    "compression.evidence.probes": "probe",
    "compression.pipeline.choose_plan": "choose_plan predicted_curve",
    "compression.pipeline.compress": "compress prepare",
    "compression.pipeline.nest": "compress_nested",
    "compression.solve.allocate": "allocate",
    "compression.solve.factorize": "factorize",
    "compression.steps.expert_pruning.prune_experts": "prune_experts",
    "compression.steps.healing.healing": "heal",
    "compression.steps.step_settings": "Healing",
    "compression.steps.layer_pruning.prune_layers": "drop_layers prune_layers",
    "compression.steps.merge_factors": "merge_factors",
    "compression.steps.quantize": "quantize",
    "compression.steps.share": "share_bases",
    "compression.steps.slicing.slicing": "slice_hidden",
    "compression.steps.sparsify": "sparsify",
    "compression.what_if": "what_if",
    "data": "write_texts",
    "evaluation.compare": "compare",
    "evaluation.cost": "measure_cost measure_speed",
    "evaluation.evaluate": "evaluate",
    "evaluation.evaluation_settings": "EvaluationSettings",
    "evaluation.generate": "generate stream",
    "evaluation.tasks": "score_choices",
    "models.load": "LoadedModel",
    "recipes.generation_settings": "GenerationSettings",
    "recipes.recipe": "Recipe",
    "runs.runs": "Runs",
    "runs.sweep": "Sweep",
    "runs.sweep_engine": "run_sweep",
    "system.errors": "InputError",
}
_MODULES = {name: module for module, names in _PUBLIC_NAMES.items() for name in names.split()}


def list_methods() -> list[dict]:
    """Return a description of every method: name, paper, summary, components, notes."""
    from .methods import METHODS

    return [method.describe() for method in METHODS.values()]


def list_policies() -> list[dict]:
    """Return a description of every allocation policy.

    Each has its name, a summary, its options, whether it reads a temperature, the evidence that it
    needs, whether that evidence serves a single budget ("one_budget"), and whether its ranks are
    compared with uniform ranks by measurement.
    """
    from .compression.evidence.measure import evidence_of
    from .ranks.policies import POLICIES

    return [
        policy.describe() | {"one_budget": evidence_of(policy.name).one_budget}
        for policy in POLICIES.values()
    ]


if not TYPE_CHECKING:  # a type checker reads the imports above

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
            globals()[name] = value
            return value
        if not name.startswith("_"):
            try:
                return import_module(f".{name}", __name__)  # a subpackage: lrcore.models
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Include the public names that were not read yet."""
    return sorted({*globals(), *_MODULES})


__all__ = [
    "EvaluationSettings",
    "GenerationSettings",
    "Healing",
    "InputError",
    "LoadedModel",
    "Recipe",
    "Runs",
    "Sweep",
    "allocate",
    "analyze",
    "calibrate",
    "choose_plan",
    "compare",
    "compress",
    "compress_nested",
    "drop_layers",
    "evaluate",
    "export",
    "export_gguf",
    "export_mla",
    "factorize",
    "generate",
    "heal",
    "list_methods",
    "list_policies",
    "load",
    "measure_cost",
    "measure_evidence",
    "measure_speed",
    "merge_factors",
    "predicted_curve",
    "prepare",
    "probe",
    "prune_experts",
    "prune_layers",
    "push",
    "quantize",
    "run_sweep",
    "save",
    "score_choices",
    "share_bases",
    "slice_hidden",
    "sparsify",
    "stream",
    "what_if",
    "write_texts",
]
