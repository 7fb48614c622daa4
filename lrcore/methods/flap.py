"""FLAP: Fluctuation-based Adaptive Structured Pruning for Large Language Models.

The heads and neurons whose outputs fluctuate least about their mean are removed. Their mean
contribution moves into the bias of the output or down projection, which is added if missing. The
paper's allocation, AL-AM, is policy `global_ranking`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers.layer import Attention, Layer, Projection, output_heads
from ..layers.linalg import column_squares
from ..layers.spectra import Cost
from ..layers.statistics import Moments
from ..system.settings import option
from .costs import heads_cost, mlp_cost
from .expert_factors import EachExpert
from .factors import Factor, LayerFactors, NeuronOrder, mlp_of
from .grams import diagonal_blocks
from .heads import GroupOrder
from .method import MATRICES, Method

NEEDS = frozenset(
    {("attn_out", "second"), ("attn_out", "mean"), ("mlp_hidden", "square"), ("mlp_hidden", "mean")}
)


@dataclass(frozen=True)
class FlapOptions:
    metric: str = option(
        "wifv",
        "importance of an input channel; wifv: variance times squared weights; ifv: variance; "
        "wifn: norm times magnitudes of the weights, as in Wanda",
        choices=("wifv", "ifv", "wifn"),
    )


DEFAULT = FlapOptions()


def factor(layer: Layer, moments: Moments, options: FlapOptions = DEFAULT) -> LayerFactors:
    """Return the order of the heads and neurons of a layer, if present."""
    solve: dict[str, Callable[[], Factor]] = {
        "heads": lambda: rank_heads(layer.attention, moments, options.metric),
        "mlp": lambda: rank_neurons(layer, moments, options.metric),
    }
    return {name: solve[name]() for name in layer.structures}


def importance(projection: Projection, moments: Moments, tap: str, metric: str) -> Tensor:
    """Return the paper's metric of the input channels of a projection, [in], float64.

    wifv: `var_j |W[:, j]|^2`; ifv: `var_j`; wifn: `E[x_j^2]^{1/2} mean_i |W_ij|`.
    """
    if metric == "wifn":
        return moments.square(tap).sqrt() * projection.weight.abs().mean(0, dtype=torch.float64)
    variance = (moments.square(tap) - moments.mean(tap) ** 2).clamp_min(0)
    return variance if metric == "ifv" else variance * column_squares(projection.weight)


def rank_heads(a: Attention, moments: Moments, metric: str = "wifv") -> GroupOrder:
    """Return the groups by the mean of the squared metric of their channels in the output
    projection.

    The loss curve is the sum over the removed groups of `E |W_g (a_g - E a_g)|^2`, the error of the
    output of the attention after the compensation; cross terms between groups are neglected.
    """
    squares = importance(a.o, moments, "attn_out", metric) ** 2
    out = output_heads(a.o.weight.double(), a.n_kv)  # [n_kv, d, group * v_size]
    losses = (out @ diagonal_blocks(moments.centered("attn_out"), a.n_kv) * out).sum((1, 2))
    scores = standardized(squares).reshape(a.n_kv, -1).mean(1)
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
    """Return the neurons by the metric of their columns in the down projection.

    The loss curve is the sum over the removed neurons of `var_j |w_j|^2`, the error of the output
    of the MLP after the compensation; cross terms are neglected.
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
        standardized(metrics)[order],
    )


def standardized(values: Tensor) -> Tensor:
    """Return values [n] minus their mean, divided by their standard deviation; zeros if all are
    equal.

    The paper compares layers and modules by these.
    """
    deviation = values.std()
    return (values - values.mean()) / torch.where(deviation > 0, deviation, 1.0)


def with_bias(cost: Cost, projection: Projection) -> Cost:
    """Return the cost of a slot whose last projection has a bias below full rank."""
    return cost if projection.bias is not None else cost.with_biases(projection.weight.shape[0])


METHOD = Method(
    name="flap",
    adds_biases=True,
    paper="Fluctuation-based Adaptive Structured Pruning for Large Language Models (An et al., "
    "AAAI 2024)",
    summary="Removes attention heads and neurons whose outputs fluctuate least.",
    notes="Complete heads and neurons by the fluctuation of their outputs (WIFV; options IFV, "
    "WIFN). Removed outputs are replaced by their mean in the biases of the output and down "
    "projections, which are added if missing. With GQA a key and a value head are removed with all "
    "their query heads. Attention with a query-key norm over the complete width is unchanged. The "
    "paper's allocation is policy global_ranking.",
    factor=EachExpert(factor),
    components=("heads", "mlp"),
    needs=NEEDS,
    diagonal_blocks=frozenset({"attn_out"}),
    shrinks_kv=True,
    holds={"heads": MATRICES[:4], "mlp": MATRICES[4:]},
    options=FlapOptions,
)
