"""Spectra: what each further rank of a slot is worth, and what it costs."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

Slot = tuple[int, str]  # (layer index, component or matrix name)


@dataclass(frozen=True)
class Cost:
    """What a slot costs at a given rank.

    full: the rank of the untouched slot. step: ranks are multiples of it (2 where rotary pairs stay
    together).
    per_rank, fixed: parameters = fixed + per_rank * rank below full, and `dense` at full.
    curve: where they do not grow evenly, fixed + curve[rank / step - 1] instead; ascending, one
    entry per multiple of step below full.
    bits, chunk: what a rank adds is kept as quantised weights of so many bits, with two scales for
    every chunk; 0: as plain numbers.
    idle_per_rank, idle_fixed, idle_dense: numbers among those per rank, fixed and at full rank that
    no input is multiplied with: biases, and the places of sparse entries.
    kv_per_rank, kv_fixed: cached numbers per token, likewise; `kv_dense` at full.
    per_cached: multiply-adds per rank that every step spends on each token in the cache, where a
    latent is cached and raised again.
    cap: largest rank below full that still saves parameters (a factored matrix beyond it would be
    larger than the dense one); kv_cap:
    that still saves cache. 0 where there is none.
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
    per_cached: int = 0
    bits: int = 0
    chunk: int = 1
    idle_per_rank: int = 0
    idle_fixed: int = 0
    idle_dense: int = 0

    @cached_property
    def cap(self) -> int:
        return self._below(self.parameters)

    @cached_property
    def kv_cap(self) -> int:
        return self._below(self.kv)

    def _below(self, price: Callable[[int], int]) -> int:
        return self.step * bisect_left(
            range(self.step, self.full, self.step), price(self.full), key=price
        )

    def parameters(self, rank: int) -> int:
        if rank >= self.full:
            return self.dense
        return self.fixed + (
            self.curve[rank // self.step - 1] if self.curve else self.per_rank * rank
        )

    def with_biases(self, count: int) -> "Cost":
        """A copy whose fixed numbers below full rank are so many biases."""
        return replace(self, fixed=count, idle_fixed=count)

    def products(self, rank: int) -> int:
        """Multiply-adds with the slot's weights, once per token."""
        if rank >= self.full:
            return self.dense - self.idle_dense
        return self.parameters(rank) - self.idle_fixed - self.idle_per_rank * rank

    def bytes(self, rank: int, itemsize: int) -> float:
        """What the slot's numbers take, the model's being `itemsize` bytes each; orders and the
        last code of a matrix aside.
        """
        if rank >= self.full or not self.bits:
            return self.parameters(rank) * itemsize
        coded = self.parameters(rank) - self.fixed
        return (
            self.fixed * itemsize
            + coded * self.bits_stored / 8
            + 2 * itemsize * math.ceil(coded / self.chunk)
        )

    @property
    def bits_stored(self) -> int:
        """Bits that a code takes: two share a byte, or each has one."""
        return 4 if self.bits <= 4 else 8

    def kv(self, rank: int) -> int:
        return self.kv_dense if rank >= self.full else self.kv_fixed + self.kv_per_rank * rank

    def ranks(self) -> list[int]:
        """All ranks that save something, ascending: multiples of step up to the larger cap, then
        full.
        """
        return [*range(self.step, max(self.cap, self.kv_cap) + 1, self.step), self.full]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The loss curve of one slot under one method.

    values [full / step], float64, descending, >= 0: keeping the first r of them leaves the loss
    `sum(values[r:] ** 2)`, in the method's own unit (squared score error, squared output error,
    ...). Only ratios within a unit compare.
    unit: slots that name the same one have values that compare with each other; empty: those of the
    same component.
    heads [count, full / step] or None: the same per head, where the slot is solved head by head.
    """

    slot: Slot
    values: Tensor
    cost: Cost
    heads: Tensor | None = None
    unit: str = ""

    @property
    def grain(self) -> int:
        """Ranks per value."""
        return self.cost.full // len(self.values)

    def tail(self, rank: int) -> float:
        """Loss left at `rank` (in columns, not steps)."""
        return (
            0.0 if rank >= self.cost.full else float((self.values[rank // self.grain :] ** 2).sum())
        )

    def in_multiples(self, multiple: int) -> "Spectrum":
        """The same curve where a rank must be a multiple of `multiple` (and of the cost's own
        step), or full.
        """
        step = math.lcm(self.cost.step, multiple)
        if step == self.cost.step:
            return self
        every = step // self.cost.step
        cost = replace(self.cost, step=step, curve=self.cost.curve[every - 1 :: every])
        return replace(self, cost=cost)

    def energy(self, rank: int) -> float:
        """Share of the loss avoided at `rank`, in [0, 1]; 1 for an all-zero slot."""
        total = float((self.values**2).sum())
        return 1.0 if total == 0 else 1.0 - self.tail(rank) / total


def cumulative_energy(values: Tensor) -> Tensor:
    """Share of `sum(values ** 2)` held by the first 1, 2, ... values.

    values [k] -> [k] in [0, 1].
    """
    squares = values.double() ** 2
    total = squares.sum()
    return torch.ones_like(squares) if total == 0 else torch.cumsum(squares, 0) / total


def energy_rank(values: Tensor, threshold: float) -> int:
    """Smallest number of values that hold `threshold` (0, 1] of the energy; at least 1."""
    reached = cumulative_energy(values) >= threshold - 1e-12
    return int(torch.argmax(reached.int())) + 1 if bool(reached.any()) else len(values)


def effective_rank(values: Tensor) -> float:
    """exp of the Shannon entropy of the normalised values (Roy and Vetterli 2007); in [1, k]; 0
    for an all-zero spectrum.
    """
    total = values.double().sum()
    if total == 0:
        return 0.0
    p = values.double() / total
    return float(torch.exp(-(p * torch.log(p.clamp_min(1e-300))).sum()))


def stable_rank(values: Tensor) -> float:
    """sum(values ** 2) / max(values) ** 2; in [1, k]; 0 for an all-zero spectrum."""
    top = values.double().max()
    return 0.0 if top == 0 else float((values.double() ** 2).sum() / top**2)


def condition_number(values: Tensor) -> float:
    """Largest over smallest value; inf where the smallest is zero."""
    low = float(values.min())
    return float("inf") if low == 0 else float(values.max()) / low
