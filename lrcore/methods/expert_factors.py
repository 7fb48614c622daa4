"""Factors of routed experts: an MLP method applied to each expert with the moments of this expert.

A slot of the MLP, or of one of its matrices, then covers all experts of a layer at a common rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layers.experts import expert_moments, expert_weights
from ..layers.layer import MLP, Layer
from ..layers.spectra import Cost
from ..layers.statistics import Moments
from .factors import Factor, LayerFactors, mlp_of, pooled

Solve = Callable[..., LayerFactors]  # (layer, moments) or (layer, moments, options)


@dataclass(frozen=True, eq=False)
class ExpertFactors:
    """A slot of all experts of a layer, with a factor per expert.

    values [k]: the root of the sum of the squared curves of the experts, weighted by their shares
    in the output.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    scores: Tensor | None
    factors: tuple[Factor, ...]

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer

        def small(number: int, factor: Factor) -> MLP:
            return mlp_of(factor.truncate(layer.of_expert(number), rank))

        return layer.with_experts(small(number, part) for number, part in enumerate(self.factors))


@dataclass(frozen=True)
class EachExpert:
    """The `factor` of a method that solves an MLP from its weights and moments only, so that it can
    also solve each expert of a layer.

    weighted: whether losses are errors of outputs. The loss of an expert then counts by its share
    in the output.
    """

    solve: Solve
    weighted: bool = True

    def __call__(self, layer: Layer, moments: Moments, *options: Any) -> LayerFactors:
        solved = self.solve(layer, moments, *options)
        if layer.experts is None:
            return solved
        count = len(layer.experts.mlps)
        by_expert = [
            self.solve(layer.of_expert(number), expert_moments(layer, moments, number), *options)
            for number in range(count)
        ]
        scale = (
            expert_weights(layer, moments)
            if self.weighted
            else torch.ones(count, dtype=torch.float64)
        )
        active = layer.experts.active
        return solved | {
            name: _joint([factors[name] for factors in by_expert], scale, active)
            for name in by_expert[0]
        }


def _joint(factors: list[Factor], scale: Tensor, active: int) -> ExpertFactors:
    """Return the factors of a slot of all experts; scale [E]: weights of the squared values."""
    values = torch.stack([factor.values for factor in factors])
    optional = (getattr(factor, "scores", None) for factor in factors)
    scores = [score for score in optional if score is not None]
    return ExpertFactors(
        pooled(values * scale.to(values).sqrt().unsqueeze(-1)),
        factors[0].cost.times(len(factors), active),
        None,
        torch.stack(scores).mean(0) if scores else None,
        tuple(factors),
    )
