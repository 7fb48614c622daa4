"""Low-rank compression of transformer language models: the public words, and nothing else.

model = lrcore.load("demo-llama")
small = lrcore.compress(model, lrcore.Recipe(method="a3", ratio=0.2))
print(lrcore.evaluate(small, "stories", samples=32).perplexity)
"""

from .analyse import Analysis, analyse
from .answers import answers, answers_csv, in_turns, read_prompts
from .bounds import bounds
from .calibrate import Calibration, calibrate
from .card import model_card
from .checkpoint import load, save
from .compare import Comparison, compare
from .compress import allocate, compress, measured, prepare
from .contributions import Contributions, contributions
from .cost import ModelCost, Speed, measure_cost, measure_speed
from .data import BUILTIN
from .differences import differences
from .errors import Cancelled, InputError
from .evaluate import Evaluation, evaluate, token_losses
from .export import export, push
from .factorise import Factorisation, factorise
from .generate import generate, stream
from .healing import Healing, heal
from .local_errors import LocalErrors, local_errors
from .methods import METHODS
from .models.load import DEMO_MODELS, LoadedModel
from .plan import RankPlan
from .policies import POLICIES
from .probing import probe
from .protocols import PROTOCOLS, Asked
from .quantise import quantise
from .recipe import BUDGETS, Recipe
from .runs import Run, Runs
from .runs import root as runs_root
from .shorten import shorten
from .stock import StockFit, stock_fit
from .sweep import Sweep, cross_calibration, finished, run_sweep
from .sweep_page import tables as sweep_tables
from .tasks import BUILTIN_TASKS, LM_EVAL_TASKS, TaskResult, lm_eval, score_choices
from .tracking import Tracker

DATASETS = tuple(BUILTIN)

__version__ = "0.1.0"


def methods() -> list[dict]:
    """Every method: name, paper, components, supports, notes."""
    return [method.describe() for method in METHODS.values()]


def policies() -> list[dict]:
    """Every allocation policy: name, summary, whether it reads a temperature, its options, and what it measures on the model."""
    return [policy.describe() for policy in POLICIES.values()]


__all__ = [
    "BUDGETS", "BUILTIN_TASKS", "DATASETS", "DEMO_MODELS", "LM_EVAL_TASKS", "PROTOCOLS", "Analysis", "Asked", "Calibration", "Cancelled",
    "Comparison", "Contributions", "Evaluation", "Factorisation", "Healing", "InputError", "LoadedModel", "LocalErrors", "ModelCost",
    "RankPlan", "Recipe", "Run", "Runs", "Speed", "StockFit", "Sweep", "TaskResult", "Tracker", "allocate", "analyse", "answers",
    "answers_csv", "bounds", "calibrate", "compare", "compress", "contributions", "cross_calibration", "differences", "evaluate", "export",
    "factorise", "finished", "generate", "heal", "in_turns", "lm_eval", "load", "local_errors", "measure_cost", "measure_speed",
    "measured", "methods", "model_card", "policies", "prepare", "probe", "push", "quantise", "read_prompts", "run_sweep", "runs_root",
    "save", "score_choices", "shorten", "stock_fit", "stream", "sweep_tables", "token_losses",
]  # fmt: skip
