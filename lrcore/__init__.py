"""Low-rank compression of transformer language models: the public words, and nothing else.

model = lrcore.load("demo-llama")
small = lrcore.compress(model, lrcore.Recipe(method="a3", ratio=0.2))
print(lrcore.evaluate(small, "stories", samples=32).perplexity)
"""

from .analyse import Analysis, analyse
from .calibrate import Calibration, calibrate
from .checkpoint import load, save
from .compress import allocate, compress, prepare
from .data import BUILTIN
from .errors import Cancelled, InputError
from .evaluate import Evaluation, evaluate, token_losses
from .factorise import Factorisation, factorise
from .generate import generate, stream
from .methods import METHODS
from .models.load import DEMO_MODELS, LoadedModel
from .plan import RankPlan
from .policies import POLICIES
from .probing import probe
from .recipe import BUDGETS, Recipe

DATASETS = tuple(BUILTIN)

__version__ = "0.1.0"


def methods() -> list[dict]:
    """Every method: name, paper, components, supports, notes."""
    return [method.describe() for method in METHODS.values()]


def policies() -> list[dict]:
    """Every allocation policy: name, summary, and whether it reads a temperature."""
    return [policy.describe() for policy in POLICIES.values()]


__all__ = [
    "BUDGETS", "DATASETS", "DEMO_MODELS", "Analysis", "Calibration", "Cancelled", "Evaluation", "Factorisation", "InputError",
    "LoadedModel", "RankPlan", "Recipe", "allocate", "analyse", "calibrate", "compress", "evaluate", "factorise", "generate", "load",
    "methods", "policies", "prepare", "probe", "save", "stream", "token_losses",
]  # fmt: skip
