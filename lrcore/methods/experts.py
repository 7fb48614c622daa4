"""Methods on the MLP, applied to routed experts: each is solved on its own, on its own moments.

A slot of the MLP, or of a matrix of it, is then all experts of a layer at one rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..experts import expert_moments, shares
from ..layer import MLP, Layer
from ..spectra import Cost
from ..statistics import Moments
from .factors import Factor, LayerFactors, mlp_of, pooled

Solve = Callable[..., LayerFactors]  # of a layer, its moments and, where they are given, options


@dataclass(frozen=True, eq=False)
class ExpertFactors:
    """A slot of all experts of a layer, each with the factor of its own.

    values [k]: the root of the sum of the experts' squared curves, each by its share in the output.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    scores: Tensor | None
    each: tuple[Factor, ...]

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer

        def small(number: int, factor: Factor) -> MLP:
            return mlp_of(factor.truncate(layer.of_expert(number), rank))

        return layer.with_experts(small(*one) for one in enumerate(self.each))


@dataclass(frozen=True)
class EachExpert:
    """The `factor` of a method that solves an MLP by its own weights and moments alone, so that it
    solves every expert of a layer too.

    weighted: whether its losses are of outputs, and those of an expert count by its share in them.
    """

    solve: Solve
    weighted: bool = True

    def __call__(self, layer: Layer, moments: Moments, *options: Any) -> LayerFactors:
        solved = self.solve(layer, moments, *options)
        if layer.experts is None:
            return solved
        count = len(layer.experts.mlps)
        each = [
            self.solve(layer.of_expert(number), expert_moments(layer, moments, number), *options)
            for number in range(count)
        ]
        scale = shares(layer, moments) if self.weighted else torch.ones(count, dtype=torch.float64)
        active = layer.experts.active
        return solved | {
            name: _joint([one[name] for one in each], scale, active) for name in each[0]
        }


def _joint(each: list[Factor], scale: Tensor, active: int) -> ExpertFactors:
    """The factors of one slot of every expert; scale [E]: what their squared values count by."""
    values = torch.stack([one.values for one in each])
    scores = [one for one in (getattr(own, "scores", None) for own in each) if one is not None]
    return ExpertFactors(
        pooled(values * scale.to(values).sqrt().unsqueeze(-1)),
        each[0].cost.times(len(each), active),
        None,
        torch.stack(scores).mean(0) if scores else None,
        tuple(each),
    )
