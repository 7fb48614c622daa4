"""Routed experts: the statistics of the tokens that reach each of them, and its moments.

The output of a mixture is `sum_e w_e f_e(x)` over the experts e that a token is routed to, so an
error of expert e counts by `w_e^2` there. Its moments are the averages over its tokens with these
weights: methods then solve it as they solve any MLP, and the losses of a layer's experts add up.

Where fewer tokens reach an expert than its matrices are wide, other tokens of the layer make up for
those that are missing: a sample of the layer's inputs, run through this expert.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .gates import clamped_swiglu, clamps_of
from .layer import MLP, Experts, Layer
from .precise import exact_device
from .statistics import SECOND, STATISTICS, Accumulator, Moments, Need, at_least_float32

OF_EXPERTS = ("mlp_in", "mlp_hidden")  # the taps that every expert has
STACKED = 8  # a multiple for widths: rows of stacked matrices begin at multiples of 16 bytes
SHARES: Need = ("routing", "square")
COUNTS: Need = ("routed", "mean")
SAMPLE: Need = ("mlp_in", "sample")


def tap_of(tap: str, expert: int) -> str:
    """The name of a tap of one expert."""
    return f"{tap}:{expert}"


def needs_of(needs: Iterable[Need], count: int) -> frozenset[Need]:
    """The needs of a layer with so many experts, where `needs` are those of one with an MLP."""
    needs = frozenset(needs)
    inner = [(tap, one) for tap, one in needs if tap in OF_EXPERTS and one in (*STATISTICS, SECOND)]
    if not inner:
        return needs
    each = {(tap_of(tap, expert), one) for tap, one in inner for expert in range(count)}
    return needs.difference(inner) | each | {SHARES, COUNTS, SAMPLE}


@dataclass(frozen=True, eq=False)
class Routed:
    """A batch of n tokens on their way to E experts.

    inputs [n, d]: what the experts read of them, each token once. reached [n, E] bool: by which
    experts. weights [n, E] float32: of their outputs, 0 where they are not reached. each [E, n, d]:
    what every expert reads, where that differs.
    """

    inputs: Tensor
    reached: Tensor
    weights: Tensor
    each: Tensor | None = None

    def of(self, number: int) -> tuple[Tensor, Tensor]:
        """The inputs [m, d] of one expert, and the weights [m] of its outputs."""
        tokens = self.reached[:, number].nonzero().squeeze(-1)
        inputs = self.inputs if self.each is None else self.each[number]
        return inputs[tokens], self.weights[tokens, number]


def routed(
    count: int, x: Tensor, chosen: Tensor | None = None, weights: Tensor | None = None
) -> Routed:
    """What a family calls its experts with.

    The inputs x [n, d], those chosen [n, active] and the weights [n, active] of their outputs. Or,
    of a family whose router scales inputs instead (Llama 4), x [count * n, d] alone: the inputs of
    every expert, zeros of tokens that do not reach it.
    """
    if chosen is None or weights is None:
        each = x.view(count, -1, x.shape[-1])
        reached = (each != 0).any(dim=-1).T
        first = reached.int().argmax(1)
        inputs = each[first, torch.arange(len(first), device=x.device)]
        return Routed(inputs, reached, reached.float(), each)
    none = torch.zeros(len(x), count, dtype=torch.float32, device=x.device)
    reached = none.scatter(1, chosen, 1.0) > 0
    return Routed(x, reached, none.scatter(1, chosen, weights.float()))


def observe(experts: Experts, accumulator: Accumulator, batch: Routed) -> None:
    """Add a batch of the tokens that a layer's experts read."""
    accumulator.observe("routing", batch.weights)
    accumulator.observe("routed", batch.reached.float())
    accumulator.observe("mlp_in", batch.inputs)
    if accumulator.taps.isdisjoint(tap_of(tap, 0) for tap in OF_EXPERTS):
        return
    for number, mlp in enumerate(experts.mlps):
        own, weights = batch.of(number)
        counts = weights**2
        accumulator.observe(tap_of("mlp_in", number), own, counts)
        if tap_of("mlp_hidden", number) in accumulator.taps:
            accumulator.observe(tap_of("mlp_hidden", number), neurons(mlp, own), counts)


def neurons(mlp: MLP, x: Tensor) -> Tensor:
    """The hidden states of an MLP, the input of its down projection. [n, d] -> [n, d_f]."""
    # here, so that the list of methods does not wait for it
    from transformers.activations import ACT2FN

    def times(name: str) -> Tensor:
        p = mlp.matrices()[name]
        return torch.nn.functional.linear(x, p.weight, p.bias)

    if (clamps := clamps_of(mlp.activation)) is not None:
        return clamped_swiglu(times("gate"), times("up"), *clamps)
    act = ACT2FN[mlp.activation]
    out: Tensor = act(times("up")) if mlp.gate is None else act(times("gate")) * times("up")
    return out


def shares(layer: Layer, moments: Moments) -> Tensor:
    """The mean squared routing weight of every expert over all tokens, [E]: what the errors of its
    output count by in the output of the layer. Ones where it was not collected.
    """
    assert layer.experts is not None
    known = moments.values.get(SHARES)
    ones = torch.ones(len(layer.experts.mlps), dtype=torch.float64)
    return ones.to(exact_device(layer.attention.o.weight.device)) if known is None else known


def missing(layer: Layer, moments: Moments) -> Tensor:
    """How many tokens every expert lacks, [E]: those up to the width of its input, or to that of
    its hidden state where it is larger.
    """
    assert layer.experts is not None
    counts = moments.values[COUNTS] * moments.tokens
    return (max(layer.experts.mlps[0].up.weight.shape) - counts).clamp_min(0)


def expert_moments(layer: Layer, moments: Moments, number: int) -> Moments:
    """The moments of one expert, as those of a layer with this MLP: averages over the tokens routed
    to it, each with its squared routing weight, and over a sample of the others where it is rare.
    """
    known = [
        (tap, statistic)
        for tap in OF_EXPERTS
        for statistic in (*STATISTICS, SECOND)
        if (tap_of(tap, number), statistic) in moments.values
    ]
    if not known:
        return Moments({}, moments.tokens)
    lacking, counts = missing(layer, moments), moments.values[COUNTS] * moments.tokens
    own = moments.values[SHARES][number]
    # the others count by the mean squared weight of a routed token
    typical = moments.values[SHARES].sum() * moments.tokens / counts.sum()
    others = lacking[number] / moments.tokens * typical
    pool = _of_sample(layer, moments, number) if bool(others > 0) else {}
    values = {}
    for tap, statistic in known:
        value = moments.values[tap_of(tap, number), statistic]
        if pool:
            value = value + others * pool[tap, statistic]
        values[tap, statistic] = value / (own + others)
    return Moments(values, round(float(counts[number] + lacking[number])))


def _of_sample(layer: Layer, moments: Moments, number: int) -> dict[Need, Tensor]:
    """The statistics of one expert over the sample of the layer's inputs."""
    assert layer.experts is not None
    x = moments.values[SAMPLE]
    states = {"mlp_in": x, "mlp_hidden": neurons(layer.experts.mlps[number], x)}
    values: dict[Need, Tensor] = {}
    for tap, state in states.items():
        wide = at_least_float32(state)
        for name, of in STATISTICS.items():
            values[tap, name] = of(wide).mean(0, dtype=torch.float64)
        values[tap, SECOND] = (wide.mT @ wide).double() / len(wide)
    return values
