"""LLM-Pruner: On the Structural Pruning of Large Language Models; and pruning of the same
structures by simpler scores.

A structure is what must go together: a group of heads with its rows of queries, keys and values and
its columns of the output projection, or a neuron with its rows of gate and up and its column of
down. Its importance is the sum over its weights; the rest stays as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layer import Layer
from ..options import option
from ..spectra import Cost
from ..statistics import TAPS, Moments
from .costs import heads_cost, mlp_cost
from .factors import LayerFactors, NeuronOrder, StructureOrder, mlp_of
from .heads import GroupOrder
from .method import MATRICES, Method
from .ranking import group_scores, neuron_scores

OF_GRADIENTS = ("param_first", "param_second", "param_mix", "taylor")


@dataclass(frozen=True)
class PrunerOptions:
    scores: str = option(
        "param_first",
        "param_first, _second, _mix: what the loss changes by without each weight, to first, "
        "second or both orders; taylor: first order by rows and columns; abs: magnitudes; wanda: "
        "those times the input's norm; random",
        choices=(*OF_GRADIENTS, "abs", "wanda", "random"),
    )
    seed: int = option(
        0,
        "seed of scores=random",
        low=0,
    )


DEFAULT = PrunerOptions()


def factor(layer: Layer, moments: Moments, options: PrunerOptions = DEFAULT) -> LayerFactors:
    """Rank the groups of heads and the neurons of one layer, those that it has.

    The loss curve is the sum of the scores that go, in the unit of the score.
    """
    generator = torch.Generator().manual_seed(options.seed + layer.index)
    solved: LayerFactors = {}
    for name in layer.structures:
        cost, score, kind = STRUCTURES[name]
        price = cost(layer)
        if options.scores == "random":
            scores = torch.rand(price.full, generator=generator, dtype=torch.float64)
            scores = scores.to(layer.attention.o.weight.device)
        else:
            scores = score(layer, moments, options.scores)
        order = scores.sort(descending=True, stable=True).indices
        scores = scores[order]
        solved[name] = kind(scores.sqrt(), price, None, order, scores=scores)
    return solved


Solver = tuple[Callable[[Layer], Cost], Callable[..., Tensor], type[StructureOrder]]
STRUCTURES: dict[str, Solver] = {
    "heads": (lambda layer: heads_cost(layer.attention), group_scores, GroupOrder),
    "mlp": (lambda layer: mlp_cost(mlp_of(layer)), neuron_scores, NeuronOrder),
}

METHOD = Method(
    name="llm_pruner",
    paper="LLM-Pruner: On the Structural Pruning of Large Language Models (Ma et al., NeurIPS "
    "2023)",
    notes="Whole heads and neurons by the change of the loss without their weights, from one "
    "backward pass per calibration window (64 at most); options: second order, both orders, by "
    "rows and columns, and magnitudes, Wanda and random choice of the same structures. With GQA a "
    "key and a value head go with all their query heads. Under a query-key norm over the whole "
    "width the attention stays as it is. All layers are pruned, and nothing is trained afterwards: "
    "the paper keeps the first and last ones and trains with LoRA.",
    factor=factor,
    components=("heads", "mlp"),
    needs=frozenset(),
    shrinks_kv=True,
    holds={"heads": MATRICES[:4], "mlp": MATRICES[4:]},
    options=PrunerOptions,
    extra_needs={
        ("scores", kind): frozenset((name, kind) for name in MATRICES) for kind in OF_GRADIENTS
    }
    | {("scores", "wanda"): frozenset((TAPS[name], "second") for name in ("o", "down"))},
)
