"""LLM-Pruner: On the Structural Pruning of Large Language Models, with simpler scores of the same
structures as baselines.

A structure is a set of weights that are removed together: a group of heads (rows of queries, keys
and values, and columns of the output projection) or a neuron (rows of gate and up, and a column of
down). The importance of a structure is the sum over these weights. The remaining weights are
unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers.layer import Layer
from ..layers.spectra import Cost
from ..layers.statistics import TAPS, Moments
from ..system.settings import option
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
        "param_first, _second, _mix: change of the loss without each weight, to first, second or "
        "both orders; taylor: first order by rows and columns; abs: magnitudes; wanda: magnitudes "
        "times the norm of the input; random",
        choices=(*OF_GRADIENTS, "abs", "wanda", "random"),
    )
    seed: int = option(
        0,
        "seed of scores=random",
        low=0,
    )


DEFAULT = PrunerOptions()


def factor(layer: Layer, moments: Moments, options: PrunerOptions = DEFAULT) -> LayerFactors:
    """Return the order of the groups of heads and of the neurons of a layer, if present.

    The loss curve is the sum of the scores of the removed structures, in the unit of the score.
    """
    generator = torch.Generator().manual_seed(options.seed + layer.index)
    solved: LayerFactors = {}
    for name in layer.structures:
        cost_of, score, order_type = STRUCTURES[name]
        cost = cost_of(layer)
        if options.scores == "random":
            scores = torch.rand(cost.full, generator=generator, dtype=torch.float64)
            scores = scores.to(layer.attention.o.weight.device)
        else:
            scores = score(layer, moments, options.scores)
        order = scores.sort(descending=True, stable=True).indices
        scores = scores[order]
        solved[name] = order_type(scores.sqrt(), cost, None, order, scores=scores)
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
    summary="Removes attention heads and neurons by the estimated change of the loss.",
    notes="Complete heads and neurons by the change of the loss without their weights, from a "
    "backward pass per calibration window (at most 64). Options: second order, both orders, by "
    "rows and columns, and magnitudes, Wanda and random choice of the same structures. With GQA a "
    "key and a value head are removed with all their query heads. Attention with a query-key norm "
    "over the complete width is unchanged. All layers are pruned, without training; the paper "
    "leaves the first and last layers unchanged and trains with LoRA.",
    factor=factor,
    components=("heads", "mlp"),
    needs=frozenset(),
    shrinks_kv=True,
    holds={"heads": MATRICES[:4], "mlp": MATRICES[4:]},
    options=PrunerOptions,
    extra_needs={
        ("scores", kind): frozenset((name, kind) for name in MATRICES) for kind in OF_GRADIENTS
    }
    | {("scores", "wanda"): frozenset((TAPS[name], "square") for name in ("o", "down"))},
)
