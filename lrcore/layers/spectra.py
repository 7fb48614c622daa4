"""Spectra: the loss that remains at each rank of a slot, and the cost of the rank."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Slot = tuple[int, str]  # (layer index, component or matrix name)


@dataclass(frozen=True)
class Cost:
    """The cost of a slot at each rank.

    full: the rank of the slot without compression. step: ranks are multiples of it (2 if rotary
    pairs stay together).
    per_rank, fixed: parameters = fixed + per_rank * rank below full, and `dense` at full rank.
    curve: for costs that are not linear, fixed + curve[rank / step - 1] instead; ascending, one
    entry per multiple of step below full. entries: entries of the curve per step; more than one if
    the policy's ranks are multiples but a rank set by hand may lie between them.
    bits, chunk: weights that depend on the rank are quantized to `bits` bits, with two scales per
    group of `chunk`; 0 bits: not quantized.
    idle_per_rank, idle_fixed, idle_dense: numbers per rank, fixed and at full rank that do not
    multiply an input: biases and indices of sparse entries. Negative if some numbers multiply
    several inputs: each query head multiplies the rows of the values (`as_latent`).
    positions: at each rank of the curve, the numbers that are sixteen bits of positions, in two
    bytes; they multiply no input.
    kv_per_rank, kv_fixed: cached numbers per token, likewise; `kv_dense` at full rank.
    per_cached: multiply-adds per rank that a step spends on each token in the cache: with the
    column of each query head, for the expansion of a latent of keys, or for weighting a latent of
    values; `cached_dense` at full rank. recomputed: a step instead multiplies each of these tokens
    with all weights of the slot.
    latent: the KV cache holds a latent of this slot below full rank.
    copies, active: a slot of experts consists of `copies` copies of an MLP; a token passes through
    `active` of them.
    cap, kv_cap: the largest rank below full that still saves parameters, or cache; 0 if there is
    none (a factored matrix of a higher rank is larger than the dense matrix).
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
    positions: tuple[int, ...] = ()
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
        """Return the parameters of the slot at a rank."""
        if rank >= self.full:
            return self.dense
        if not self.curve:
            return self.fixed + self.per_rank * rank
        return self.fixed + self.curve[self._entry(rank)]

    def _entry(self, rank: int) -> int:
        """Return the index of a rank below full in the curve."""
        return rank * self.entries // self.step - 1

    def positions_at(self, rank: int) -> int:
        """Return the numbers at a rank below full that are positions."""
        return self.positions[self._entry(rank)] if self.positions else 0

    def idle(self, rank: int) -> int:
        """Return the numbers at a rank that do not multiply an input."""
        if rank >= self.full:
            return self.idle_dense
        return self.idle_fixed + self.idle_per_rank * rank + self.positions_at(rank)

    def times(self, copies: int, active: int) -> "Cost":
        """Return the cost of several copies of a slot; a token passes through `active` of them."""
        names = (
            *("per_rank", "dense", "fixed"),
            *("idle_per_rank", "idle_fixed", "idle_dense"),
        )
        scaled: dict[str, Any] = {name: copies * getattr(self, name) for name in names}
        for name in ("curve", "positions"):
            scaled[name] = tuple(copies * number for number in getattr(self, name))
        return replace(self, **scaled, copies=copies, active=active)

    def with_biases(self, count: int) -> "Cost":
        """Return a copy with `count` biases as fixed numbers below full rank."""
        return replace(self, fixed=count, idle_fixed=count)

    def products(self, rank: int) -> int:
        """Return the multiply-adds with the slot's weights, once per token."""
        return self._multiplied(self.parameters(rank) - self.idle(rank))

    def cached_products(self, rank: int) -> int:
        """Return the multiply-adds that a step spends on each token in the cache."""
        if rank >= self.full:
            return self.cached_dense
        return self.products(rank) if self.recomputed else self.per_cached * rank

    def _multiplied(self, numbers: int) -> int:
        """Return the share of the numbers of all copies that a token is multiplied with."""
        return numbers * self.active // self.copies

    def bytes(self, rank: int, itemsize: int) -> float:
        """Return the bytes of the slot at a rank in a model with `itemsize` bytes per number.

        Permutations and the padding of quantized weights to bytes are not counted.
        """
        if rank >= self.full:
            return self.dense * itemsize
        if not self.bits:
            positions = self.positions_at(rank)
            return (self.parameters(rank) - positions) * itemsize + positions * 2
        quantized = self.parameters(rank) - self.fixed
        return (
            self.fixed * itemsize
            + quantized * self.bits_stored / 8
            + 2 * itemsize * self.copies * math.ceil(quantized / self.copies / self.chunk)
        )

    @property
    def bits_stored(self) -> int:
        """Bits in memory of a quantized weight: unchanged up to 4, else 8."""
        return self.bits if self.bits <= 4 else 8

    def kv(self, rank: int) -> int:
        """Return the cached numbers per token at a rank."""
        return self.kv_dense if rank >= self.full else self.kv_fixed + self.kv_per_rank * rank

    def ranks(self) -> list[int]:
        """Return all ranks that save parameters or cache, ascending, and then the full rank."""
        return [*range(self.step, max(self.cap, self.kv_cap) + 1, self.step), self.full]


class Form(NamedTuple):
    """A form of a part of a layer. A plan takes a single form of each part, see `by_part`."""

    part: str
    name: str


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The loss curve of a slot under a method.

    values [full / step], float64, descending, >= 0: retaining the first r of them leaves the loss
    `sum(values[r:] ** 2)`, in the unit of the method (squared score error, squared output error,
    ...). Only values of the same unit are comparable.
    unit: slots with the same name have comparable values; empty: slots of the same component have.
    heads [count, full / step] or None: the same per head, if the slot is solved head by head.
    scores [full / step] or None: the ranking of the method, in the order of `values`, if it is
    comparable between all slots of the method.
    form: the form that the slot belongs to, if the part has several; else None.
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
    def remaining_losses(self) -> np.ndarray:
        """`sum(values[r:] ** 2)` of r = 0, 1, ..., [full / step + 1], float64; summed once.

        A numpy array, because each scalar read from a tensor releases the interpreter lock, which a
        busy server then waits for.
        """
        squares = self.values.double().cpu().numpy() ** 2
        return np.append(np.cumsum(squares[::-1])[::-1], 0.0)

    def tail(self, rank: int) -> float:
        """Return the loss that remains at `rank` (in columns, not steps)."""
        return float(self.remaining_losses[min(rank // self.grain, len(self.values))])

    def in_multiples(self, multiple: int) -> "Spectrum":
        """Return the same curve with ranks that are multiples of `multiple` and of the step, or
        full.
        """
        step = math.lcm(self.cost.step, multiple)
        if step == self.cost.step:
            return self
        factor = step // self.cost.step
        cost = replace(self.cost, step=step, entries=self.cost.entries * factor)
        return replace(self, cost=cost)

    def energy(self, rank: int) -> float:
        """Return the share of the loss avoided at `rank`, in [0, 1]; 1 for an all-zero slot."""
        total = self.tail(0)
        return 1.0 if total == 0 else 1.0 - self.tail(rank) / total


Part = tuple[int, str]  # (layer index, part)
Forms = dict[str, dict[Slot, Spectrum]]  # by form, in the method's order


def by_part(spectra: Mapping[Slot, Spectrum]) -> dict[Part, Forms]:
    """Group slots by part and form. A slot without a form is a part with a single form.

    A part is a set of slots that can be approximated in several forms: QK, OV or the MLP of a
    layer, either narrowed (fewer columns per head, fewer neurons) or with a low-rank pair for each
    matrix. A plan contains the slots of a single form of each part. The dense cost of a part is the
    same in all forms.
    """
    parts: dict[Part, Forms] = {}
    for slot, spectrum in spectra.items():
        part, form = (slot[1], "") if spectrum.form is None else spectrum.form
        parts.setdefault((slot[0], part), {}).setdefault(form, {})[slot] = spectrum
    return parts


def first_forms(spectra: Mapping[Slot, Spectrum]) -> dict[Slot, Spectrum]:
    """Return the slots of the first form of each part."""
    first = (next(iter(forms.values())) for forms in by_part(spectra).values())
    return {slot: spectrum for form_spectra in first for slot, spectrum in form_spectra.items()}


def cumulative_energy(values: Tensor) -> Tensor:
    """Return the share of `sum(values ** 2)` in the first 1, 2, ... values.

    values [k] -> [k] in [0, 1].
    """
    squares = values.double() ** 2
    total = squares.sum()
    return torch.ones_like(squares) if total == 0 else torch.cumsum(squares, 0) / total


def energy_rank(values: Tensor, threshold: float) -> int:
    """Return the smallest number of values [k] with `threshold` (0, 1] of the energy."""
    reached = cumulative_energy(values) >= threshold - 1e-12
    return int(torch.argmax(reached.int())) + 1 if bool(reached.any()) else len(values)


def effective_rank(values: Tensor) -> float:
    """Return exp of the entropy of the normalized values [k] (Roy and Vetterli 2007); in [1, k], or
    0.
    """
    total = values.double().sum()
    if total == 0:
        return 0.0
    p = values.double() / total
    return float(torch.exp(-(p * torch.log(p.clamp_min(1e-300))).sum()))


def stable_rank(values: Tensor) -> float:
    """Return sum(values ** 2) / max(values) ** 2 of values [k]; in [1, k], 0 if all are zero."""
    top = values.double().max()
    return 0.0 if top == 0 else float((values.double() ** 2).sum() / top**2)


def condition_number(values: Tensor) -> float:
    """Return the largest over the smallest of values [k]; inf if the smallest is zero."""
    low = float(values.min())
    return float("inf") if low == 0 else float(values.max()) / low
