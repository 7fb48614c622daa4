"""Measurement of complete plans: the network compressed to the ranks of a plan, then measured.

All evidence that depends on complete plans uses `measure_plan`: the searches, the joint probes and
the comparison with uniform ranks.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from ...models.load import LoadedModel
from ...ranks.plan import RankPlan
from ...recipes.recipe import Recipe
from ...system.progress import Progress, silent
from ..solve.compress_layers import compress_layers
from ..solve.factorize import Factorization

T = TypeVar("T")
TRUNCATED = Recipe(refit="off", calibration_mode="independent")  # layers are only truncated


@torch.inference_mode()
def measure_plan(
    model: LoadedModel,
    factors: Factorization,
    plan: RankPlan,
    measure: Callable[[PreTrainedModel], T],
    recipe: Recipe = TRUNCATED,
    progress: Progress = silent,
) -> T:
    """Return the measurement of a network that is compressed to the ranks of a plan.

    measure(network): for example the mean loss or the divergence from the dense network. recipe:
    how layers are compressed; by default they are truncated, without a refit. progress: reports
    the layers of a refit, which can take minutes.
    """
    return measure(compress_layers(model, recipe, factors, plan, progress))
