"""FLAP: Fluctuation-based Adaptive Structured Pruning for Large Language Models.

Heads and neurons whose outputs fluctuate least about their mean are removed whole, and what they
contribute on average moves into the bias of the output or down projection, which gets one where it
has none. The allocation of the paper, AL-AM, is policy `global_ranking`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layer import Attention, Layer, Projection, output_heads
from ..linalg import column_squares
from ..options import option
from ..spectra import Cost
from ..statistics import Moments
from .costs import heads_cost, mlp_cost
from .experts import EachExpert
from .factors import Factor, LayerFactors, NeuronOrder, mlp_of
from .grams import diagonal_blocks
from .heads import GroupOrder
from .method import MATRICES, Method

NEEDS = frozenset(
    (tap, statistic) for tap in ("attn_out", "mlp_hidden") for statistic in ("second", "mean")
)


@dataclass(frozen=True)
class FlapOptions:
    metric: str = option(
        "wifv",
        "importance of an input channel: its variance times its squared weights; ifv: its variance "
        "alone; wifn: its norm times its magnitudes, as Wanda",
        choices=("wifv", "ifv", "wifn"),
    )


DEFAULT = FlapOptions()


def factor(layer: Layer, moments: Moments, options: FlapOptions = DEFAULT) -> LayerFactors:
    """Rank the heads and neurons of one layer, those that it has."""
    solve: dict[str, Callable[[], Factor]] = {
        "heads": lambda: rank_heads(layer.attention, moments, options.metric),
        "mlp": lambda: rank_neurons(layer, moments, options.metric),
    }
    return {name: solve[name]() for name in layer.structures}


def importance(projection: Projection, moments: Moments, tap: str, metric: str) -> Tensor:
    """The paper's metrics for the input channels of a projection, [in], float64.

    wifv: `var_j |W[:, j]|^2`; ifv: `var_j`; wifn: `E[x_j^2]^{1/2} mean_i |W_ij|`.
    """
    if metric == "wifn":
        return moments.square(tap).sqrt() * projection.weight.abs().mean(0, dtype=torch.float64)
    variance = (moments.square(tap) - moments.mean(tap) ** 2).clamp_min(0)
    return variance if metric == "ifv" else variance * column_squares(projection.weight)


def rank_heads(a: Attention, moments: Moments, metric: str = "wifv") -> GroupOrder:
    """Groups by the mean of the squared metric of their channels in the output projection.

    The loss curve is the sum over the removed groups of `E |W_g (a_g - E a_g)|^2`, the error of the
    attention's output after the compensation; cross terms between groups are left out.
    """
    squares = importance(a.o, moments, "attn_out", metric) ** 2
    out = output_heads(a.o.weight.double(), a.n_kv)  # [n_kv, d, group * v_size]
    losses = (out @ diagonal_blocks(moments.centred("attn_out"), a.n_kv) * out).sum((1, 2))
    scores = standardised(squares).reshape(a.n_kv, -1).mean(1)
    order = scores.sort(descending=True, stable=True).indices
    return GroupOrder(
        losses[order].clamp_min(0).sqrt(),
        with_bias(heads_cost(a), a.o),
        None,
        order,
        moments.mean("attn_out"),
        scores[order],
    )


def rank_neurons(layer: Layer, moments: Moments, metric: str = "wifv") -> NeuronOrder:
    """Neurons by the metric of their column in the down projection.

    The loss curve is the sum over the removed neurons of `var_j |w_j|^2`, the error of the MLP's
    output after the compensation; cross terms are left out.
    """
    m = mlp_of(layer)
    metrics = importance(m.down, moments, "mlp_hidden", metric)
    losses = importance(m.down, moments, "mlp_hidden", "wifv")
    order = metrics.sort(descending=True, stable=True).indices
    return NeuronOrder(
        losses[order].sqrt(),
        with_bias(mlp_cost(m), m.down),
        None,
        order,
        moments.mean("mlp_hidden"),
        standardised(metrics)[order],
    )


def standardised(values: Tensor) -> Tensor:
    """Values [n] less their mean, in units of their standard deviation; zeros where all are equal.

    How the paper makes layers and modules comparable.
    """
    deviation = values.std()
    return (values - values.mean()) / torch.where(deviation > 0, deviation, 1.0)


def with_bias(cost: Cost, projection: Projection) -> Cost:
    """The cost of a slot whose last projection has a bias below full rank."""
    return cost if projection.bias is not None else cost.with_biases(projection.weight.shape[0])


METHOD = Method(
    name="flap",
    adds_biases=True,
    paper="Fluctuation-based Adaptive Structured Pruning for Large Language Models (An et al., "
    "AAAI 2024)",
    notes="Whole heads and neurons by the fluctuation of their outputs (WIFV; options IFV, WIFN); "
    "what is removed is replaced by its mean, in the bias of the output and down projections, "
    "which get one where they have none. With GQA a key and a value head go with all their query "
    "heads. Under a query-key norm over the whole width the attention stays as it is. The paper's "
    "allocation is policy global_ranking.",
    factor=EachExpert(factor),
    components=("heads", "mlp"),
    needs=NEEDS,
    shrinks_kv=True,
    holds={"heads": MATRICES[:4], "mlp": MATRICES[4:]},
    options=FlapOptions,
)
