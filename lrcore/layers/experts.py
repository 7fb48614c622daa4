"""Routed experts: statistics of the tokens that reach each expert, and moments of experts.

The output of a mixture is `sum_e w_e f_e(x)` over the experts e that a token is routed to, so an
error of expert e counts by `w_e^2`. Moments of an expert are averages over these tokens with
these weights. Methods can therefore solve an expert like any MLP, and the losses of the experts of
a layer add up.

If fewer tokens reach an expert than its matrices are wide, a sample of the layer's inputs is run
through this expert to fill the gap.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .layer import MLP, Experts, Layer, gate_function, gated_states
from .linalg import float64_device
from .statistics import (
    OUTPUT_CURVATURES,
    SECOND,
    STATISTICS,
    Accumulator,
    Moments,
    Need,
    at_least_float32,
)

OF_EXPERTS = ("mlp_in", "mlp_hidden")  # the taps of each expert
STACKED = 8  # widths are multiples of it, so that stacked rows are aligned to 16 bytes
SHARES: Need = ("routing", "square")
COUNTS: Need = ("routed", "mean")
SAMPLE: Need = ("mlp_in", "sample")


def expert_tap(tap: str, expert: int) -> str:
    """Return the name of a tap of an expert."""
    return f"{tap}:{expert}"


def expert_needs(needs: Iterable[Need], count: int) -> frozenset[Need]:
    """Return the needs of a layer with `count` experts, given the needs of a layer with an MLP."""
    needs = frozenset(needs)
    mlp_needs = [
        (tap, statistic)
        for tap, statistic in needs
        if tap in OF_EXPERTS and statistic in (*STATISTICS, SECOND)
    ]
    if not mlp_needs:
        return needs
    expert_level_needs = {
        (expert_tap(tap, expert), statistic)
        for tap, statistic in mlp_needs
        for expert in range(count)
    }
    return needs.difference(mlp_needs) | expert_level_needs | {SHARES, COUNTS, SAMPLE}


@dataclass(frozen=True, eq=False)
class RoutedTokens:
    """A batch of n tokens routed to E experts.

    inputs [n, d]: the inputs of the experts, each token once. reached [n, E] bool: the experts that
    a token is routed to. weights [n, E] float32: weights of the expert outputs, 0 for other
    experts. by_expert [E, n, d]: the inputs of each expert, if they differ from `inputs`.
    """

    inputs: Tensor
    reached: Tensor
    weights: Tensor
    by_expert: Tensor | None = None

    def for_expert(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the inputs [m, d] of an expert, and the weights [m] of the outputs."""
        tokens = self.reached[:, number].nonzero().squeeze(-1)
        inputs = self.inputs if self.by_expert is None else self.by_expert[number]
        return inputs[tokens], self.weights[tokens, number]


def route_tokens(
    experts: Experts, x: Tensor, expert_indices: Tensor | None = None, weights: Tensor | None = None
) -> RoutedTokens:
    """Return the batch described by the arguments of a family's experts module.

    x [n, d]: inputs. expert_indices, weights [n, active]: the experts of each token and the weights
    of their outputs. In families whose router scales the inputs (Llama 4), x [count * n, d] is the
    only argument: the inputs of each expert, zero for tokens that do not reach it. Identities are
    left out.
    """
    count = len(experts.mlps)
    if expert_indices is None or weights is None:
        by_expert = x.view(count, -1, x.shape[-1])
        reached = (by_expert != 0).any(dim=-1).T
        first = reached.int().argmax(1)
        inputs = by_expert[first, torch.arange(len(first), device=x.device)]
        return RoutedTokens(inputs, reached, reached.float(), by_expert)
    columns = count + experts.identities
    zeros = torch.zeros(len(x), columns, dtype=torch.float32, device=x.device)
    reached = zeros.scatter(1, expert_indices, 1.0) > 0
    of_outputs = zeros.scatter(1, expert_indices, weights.float())
    return RoutedTokens(x, reached[:, :count], of_outputs[:, :count])


def observe_experts(experts: Experts, accumulator: Accumulator, batch: RoutedTokens) -> None:
    """Add a batch of the tokens that a layer's experts read."""
    accumulator.observe("routing", batch.weights)
    accumulator.observe("routed", batch.reached.float())
    accumulator.observe("mlp_in", batch.inputs)
    if accumulator.taps.isdisjoint(expert_tap(tap, 0) for tap in OF_EXPERTS):
        return
    for number, mlp in enumerate(experts.mlps):
        inputs, weights = batch.for_expert(number)
        squared_weights = weights**2
        accumulator.observe(expert_tap("mlp_in", number), inputs, squared_weights)
        if expert_tap("mlp_hidden", number) in accumulator.taps:
            accumulator.observe(
                expert_tap("mlp_hidden", number), mlp_hidden_states(mlp, inputs), squared_weights
            )


def mlp_hidden_states(mlp: MLP, x: Tensor) -> Tensor:
    """Return the hidden states of an MLP, the input of the down projection. [n, d] -> [n, d_f]."""
    # imported late: `lrcore methods` needs no transformers
    from transformers.activations import ACT2FN

    def project(name: str) -> Tensor:
        p = mlp.matrices()[name]
        return torch.nn.functional.linear(x, p.weight, p.bias)

    act = ACT2FN[gate_function(mlp.activation)]
    if mlp.gate is None:
        out: Tensor = act(project("up"))
        return out
    return gated_states(mlp.activation, act, project("gate"), project("up"))


def expert_weights(layer: Layer, moments: Moments) -> Tensor:
    """Return the mean squared routing weight of each expert over all tokens, [E].

    The output errors of an expert count by this weight in the output of the layer. Ones if it was
    not collected.
    """
    assert layer.experts is not None
    collected = moments.values.get(SHARES)
    default = torch.ones(len(layer.experts.mlps), dtype=torch.float64)
    return (
        default.to(float64_device(layer.attention.o.weight.device))
        if collected is None
        else collected
    )


def missing_tokens(layer: Layer, moments: Moments) -> Tensor:
    """Return how many tokens each expert lacks, [E].

    An expert needs as many tokens as the input or the hidden state is wide, whichever is larger.
    """
    assert layer.experts is not None
    counts = moments.values[COUNTS] * moments.tokens
    return (max(layer.experts.mlps[0].up.weight.shape) - counts).clamp_min(0)


def expert_moments(layer: Layer, moments: Moments, number: int) -> Moments:
    """Return the moments of an expert, in the form of a layer with this MLP.

    Averages over the tokens routed to it, each with its squared routing weight. A rare expert also
    averages over a sample of tokens that are not routed to it.
    """
    needs = [
        (tap, statistic)
        for tap in OF_EXPERTS
        for statistic in (*STATISTICS, SECOND)
        if (expert_tap(tap, number), statistic) in moments.values
    ]
    if not needs:
        return Moments({}, moments.tokens)
    missing, counts = missing_tokens(layer, moments), moments.values[COUNTS] * moments.tokens
    weight_sum = moments.values[SHARES][number]
    # sampled tokens count by the mean squared weight of a routed token
    typical = moments.values[SHARES].sum() * moments.tokens / counts.sum()
    fill_weight = missing[number] / moments.tokens * typical
    sample_values = _sample_statistics(layer, moments, number) if bool(fill_weight > 0) else {}
    values = {}
    for tap, statistic in needs:
        value = moments.values[expert_tap(tap, number), statistic]
        if sample_values:
            value = value + fill_weight * sample_values[tap, statistic]
        values[tap, statistic] = value / (weight_sum + fill_weight)
    values |= _output_curvatures(moments, number, weight_sum)
    return Moments(values, round(float(counts[number] + missing[number])))


def _output_curvatures(moments: Moments, number: int, weight_sum: Tensor) -> dict[Need, Tensor]:
    """Return the curvatures of the outputs of an expert's matrices, averages as in
    `expert_moments`.

    Gradients contain the routing weight; no sample replaces the tokens that a rare expert lacks.
    """
    scale = weight_sum.clamp_min(torch.finfo(weight_sum.dtype).tiny)
    return {
        (name, statistic): moments.values[expert_tap(name, number), statistic] / scale
        for name in ("gate", "up", "down")
        for statistic in OUTPUT_CURVATURES
        if (expert_tap(name, number), statistic) in moments.values
    }


def _sample_statistics(layer: Layer, moments: Moments, number: int) -> dict[Need, Tensor]:
    """Return the statistics of an expert over the sample of the layer's inputs."""
    assert layer.experts is not None
    x = moments.values[SAMPLE]
    states = {"mlp_in": x, "mlp_hidden": mlp_hidden_states(layer.experts.mlps[number], x)}
    values: dict[Need, Tensor] = {}
    for tap, state in states.items():
        precise = at_least_float32(state)
        for name, function in STATISTICS.items():
            values[tap, name] = function(precise).mean(0, dtype=torch.float64)
        values[tap, SECOND] = (precise.mT @ precise).double() / len(precise)
    return values
