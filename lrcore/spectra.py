"""Spectra: the loss that each rank of a slot leaves, and what the rank costs."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Slot = tuple[int, str]  # (layer index, component or matrix name)


@dataclass(frozen=True)
class Cost:
    """What a slot costs at a given rank.

    full: the rank of the slot as it is. step: ranks are multiples of it (2 where rotary pairs stay
    together).
    per_rank, fixed: parameters = fixed + per_rank * rank below full, and `dense` at full.
    curve: where they do not grow linearly, fixed + curve[rank / step - 1] instead; ascending, one
    entry per multiple of step below full. entries: of the curve per step; more than one where the
    ranks on offer are multiples, but a rank set by hand may lie between them.
    bits, chunk: the weights that a rank adds are quantised to so many bits, with two scales per
    group of `chunk`; 0 bits: not quantised.
    idle_per_rank, idle_fixed, idle_dense: numbers per rank, fixed and at full rank that multiply no
    input: biases, and the indices of sparse entries. Below 0 where some multiply several: every
    query head has a product with the rows of its values (`as_latent`).
    kv_per_rank, kv_fixed: cached numbers per token, likewise; `kv_dense` at full.
    per_cached: multiply-adds per rank that every step spends on each token in the cache: with the
    column of every query head, to expand a latent of keys, or to weight one of values;
    `cached_dense` at full. recomputed: whether every step multiplies each of these tokens with all
    weights of the slot, instead.
    latent: whether the KV cache holds a latent of this slot below full.
    copies, active: a slot of experts is so many copies of one MLP, a token passes through so many.
    cap, kv_cap: the largest rank below full that still saves parameters, or cache; 0 where there is
    none (a factored matrix of a higher rank is larger than the dense one).
    """

    full: int
    per_rank: int
    dense: int
    fixed: int = 0
    step: int = 1
    kv_per_rank: int = 0
    kv_fixed: int = 0
    kv_dense: int = 0
    curve: tuple[int, ...] = ()
    entries: int = 1
    per_cached: int = 0
    cached_dense: int = 0
    recomputed: bool = False
    latent: bool = False
    bits: int = 0
    chunk: int = 1
    idle_per_rank: int = 0
    idle_fixed: int = 0
    idle_dense: int = 0
    copies: int = 1
    active: int = 1

    @cached_property
    def cap(self) -> int:
        return self._below(self.parameters)

    @cached_property
    def kv_cap(self) -> int:
        return self._below(self.kv)

    def _below(self, price: Callable[[int], int]) -> int:
        ranks = range(self.step, self.full, self.step)
        return self.step * bisect_left(ranks, price(self.full), key=price)

    def parameters(self, rank: int) -> int:
        """Parameters of the slot at a rank."""
        if rank >= self.full:
            return self.dense
        if not self.curve:
            return self.fixed + self.per_rank * rank
        return self.fixed + self.curve[rank * self.entries // self.step - 1]

    def times(self, copies: int, active: int) -> "Cost":
        """The cost of as many copies of a slot, of which a token passes through `active`."""
        names = ("per_rank", "dense", "fixed", "idle_per_rank", "idle_fixed", "idle_dense")
        scaled: dict[str, int] = {name: copies * getattr(self, name) for name in names}
        curve = tuple(copies * one for one in self.curve)
        return replace(self, **scaled, curve=curve, copies=copies, active=active)  # type: ignore[arg-type]

    def with_biases(self, count: int) -> "Cost":
        """A copy whose fixed numbers below full rank are so many biases."""
        return replace(self, fixed=count, idle_fixed=count)

    def products(self, rank: int) -> int:
        """Multiply-adds with the slot's weights, once per token."""
        if rank >= self.full:
            return self._multiplied(self.dense - self.idle_dense)
        idle = self.idle_fixed + self.idle_per_rank * rank
        return self._multiplied(self.parameters(rank) - idle)

    def cached_products(self, rank: int) -> int:
        """Multiply-adds that every step spends on each token in the cache."""
        if rank >= self.full:
            return self.cached_dense
        return self.products(rank) if self.recomputed else self.per_cached * rank

    def _multiplied(self, numbers: int) -> int:
        """Of the numbers of all copies, those that a token is multiplied with."""
        return numbers * self.active // self.copies

    def bytes(self, rank: int, itemsize: int) -> float:
        """Bytes of the slot at a rank in a model of `itemsize` bytes per number.

        Permutations, and the padding of quantised weights to whole bytes, are not counted.
        """
        if rank >= self.full or not self.bits:
            return self.parameters(rank) * itemsize
        quantised = self.parameters(rank) - self.fixed
        return (
            self.fixed * itemsize
            + quantised * self.bits_stored / 8
            + 2 * itemsize * self.copies * math.ceil(quantised / self.copies / self.chunk)
        )

    @property
    def bits_stored(self) -> int:
        """Bits that a quantised weight takes in memory: its own up to 4, else 8."""
        return self.bits if self.bits <= 4 else 8

    def kv(self, rank: int) -> int:
        """Cached numbers per token at a rank."""
        return self.kv_dense if rank >= self.full else self.kv_fixed + self.kv_per_rank * rank

    def ranks(self) -> list[int]:
        """All ranks that save parameters or cache, ascending, and then full."""
        return [*range(self.step, max(self.cap, self.kv_cap) + 1, self.step), self.full]


class Form(NamedTuple):
    """One of several forms in which a part of a layer can be compressed, see
    lrcore/alternatives.py.
    """

    part: str
    name: str


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The loss curve of one slot under one method.

    values [full / step], float64, descending, >= 0: keeping the first r of them leaves the loss
    `sum(values[r:] ** 2)`, in the method's own unit (squared score error, squared output error,
    ...). Only values of one unit can be compared.
    unit: slots with the same name have comparable values; empty: those of the same component.
    heads [count, full / step] or None: the same per head, where the slot is solved head by head.
    scores [full / step] or None: what the method ranks by, in the order of `values`, where that can
    be compared between all of its slots.
    form: the form that the slot belongs to, where its part has several; None where it has one.
    """

    slot: Slot
    values: Tensor = field(repr=False)
    cost: Cost
    heads: Tensor | None = field(default=None, repr=False)
    unit: str = ""
    scores: Tensor | None = field(default=None, repr=False)
    form: Form | None = None

    @property
    def grain(self) -> int:
        """Ranks per value."""
        return self.cost.full // len(self.values)

    @cached_property
    def losses_left(self) -> np.ndarray:
        """`sum(values[r:] ** 2)` of r = 0, 1, ... all, [full / step + 1], float64: summed once.

        An array of numpy's: looking numbers up one by one in a tensor gives up the interpreter's
        lock at each of them, and a busy server waits for it as often.
        """
        squares = self.values.double().cpu().numpy() ** 2
        return np.append(np.cumsum(squares[::-1])[::-1], 0.0)

    def tail(self, rank: int) -> float:
        """Loss left at `rank` (in columns, not steps)."""
        return float(self.losses_left[min(rank // self.grain, len(self.values))])

    def in_multiples(self, multiple: int) -> "Spectrum":
        """The same curve with ranks that are multiples of `multiple` and of the step, or full."""
        step = math.lcm(self.cost.step, multiple)
        if step == self.cost.step:
            return self
        every = step // self.cost.step
        cost = replace(self.cost, step=step, entries=self.cost.entries * every)
        return replace(self, cost=cost)

    def energy(self, rank: int) -> float:
        """Share of the loss avoided at `rank`, in [0, 1]; 1 for an all-zero slot."""
        total = self.tail(0)
        return 1.0 if total == 0 else 1.0 - self.tail(rank) / total


def cumulative_energy(values: Tensor) -> Tensor:
    """Share of `sum(values ** 2)` held by the first 1, 2, ... values.

    values [k] -> [k] in [0, 1].
    """
    squares = values.double() ** 2
    total = squares.sum()
    return torch.ones_like(squares) if total == 0 else torch.cumsum(squares, 0) / total


def energy_rank(values: Tensor, threshold: float) -> int:
    """Smallest number of values [k] that hold `threshold` (0, 1] of the energy; at least 1."""
    reached = cumulative_energy(values) >= threshold - 1e-12
    return int(torch.argmax(reached.int())) + 1 if bool(reached.any()) else len(values)


def effective_rank(values: Tensor) -> float:
    """exp of the entropy of the normalised values [k] (Roy and Vetterli 2007); in [1, k], or 0."""
    total = values.double().sum()
    if total == 0:
        return 0.0
    p = values.double() / total
    return float(torch.exp(-(p * torch.log(p.clamp_min(1e-300))).sum()))


def stable_rank(values: Tensor) -> float:
    """sum(values ** 2) / max(values) ** 2 of values [k]; in [1, k], 0 if all are zero."""
    top = values.double().max()
    return 0.0 if top == 0 else float((values.double() ** 2).sum() / top**2)


def condition_number(values: Tensor) -> float:
    """Largest over smallest of values [k]; inf where the smallest is zero."""
    low = float(values.min())
    return float("inf") if low == 0 else float(values.max()) / low
