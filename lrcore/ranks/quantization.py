"""Quantization of slots to few bits, for budget "bytes".

Each slot is offered as it is and with its numbers rounded to BITS. The slots in some number of bits
are a further form of their part, so a policy that chooses between forms chooses form, rank and bits
together. Prices are bytes: of the codes, of two scales per group of GROUP numbers, of the numbers
that are not rounded (biases), and of what else is stored (permutations, indices, padding).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil

import torch
from torch import Tensor

from ..layers.spectra import Cost, Form, Slot, Spectrum, by_part
from .budget import take_steps
from .evidence import Evidence, LossCurve, Probes
from .repricing import ranks_below, with_prices

BITS = (8, 4, 3, 2)
GROUP = 64  # numbers that share a grid, as `quantize` has by default


@dataclass(frozen=True)
class QuantizedSlot:
    """Measurements of a slot with rounded numbers.

    rank: a measured rank below full, 0 if there is none. below, full: by bits, the increase in loss
    (nats/token) of the model by rounding the slot at this rank, and at full rank; empty if the slot
    cannot be rounded. extra: by bits, 0 without rounding, the bytes at ranks below full beyond
    `rounded_bytes`.
    """

    rank: int
    below: Mapping[int, float]
    full: Mapping[int, float]
    extra: Mapping[int, int]

    @property
    def can_round(self) -> bool:
        """Whether the numbers of the slot can be rounded."""
        return bool(self.full)

    def rise(self, cost: Cost, rank: int, bits: int) -> float:
        """Return the increase in loss by rounding the slot at a rank.

        Each rounded number adds the same error, so the increase is proportional to the parameters.
        """
        if rank >= cost.full or not self.rank:
            return self.full[bits]
        return self.below[bits] * cost.parameters(rank) / cost.parameters(self.rank)


@dataclass(frozen=True, eq=False)
class Quantization:
    """Evidence "quantization", by slot."""

    slots: Mapping[Slot, QuantizedSlot] = field(default_factory=dict)

    def can_round(self, slot: Slot) -> bool:
        """Return whether the numbers of a slot can be rounded."""
        return slot in self.slots and self.slots[slot].can_round

    def rise(self, spectrum: Spectrum, rank: int, bits: int) -> float:
        """Return the increase in loss (nats/token) by rounding a slot; 0 bits: not rounded."""
        if not bits:
            return 0.0
        return self.slots[spectrum.slot].rise(spectrum.cost, rank, bits)

    def bytes(self, spectrum: Spectrum, rank: int, bits: int, itemsize: int) -> int:
        """Return the bytes of a slot; 0 bits: not rounded, `itemsize` bytes per number."""
        cost, slot = spectrum.cost, self.slots.get(spectrum.slot)
        extra = 0 if slot is None or rank >= cost.full else slot.extra[bits]
        return rounded_bytes(cost, rank, bits, itemsize) + extra


def rounded_bytes(cost: Cost, rank: int, bits: int, itemsize: int) -> int:
    """Return the bytes of the numbers of a slot at a rank, in `bits` bits and with their scales.

    Biases keep `itemsize` bytes; with 0 bits all numbers do.
    """
    numbers = cost.parameters(rank)
    if not bits:
        return numbers * itemsize
    kept = max(0, cost.idle(rank))
    scales = 2 * itemsize * ceil((numbers - kept) / GROUP)
    return kept * itemsize + ceil((numbers - kept) * bits / 8) + scales


def with_bits(
    evidence: Evidence, quantization: Quantization, itemsize: int
) -> tuple[Evidence, dict[Slot, tuple[Slot, int]]]:
    """Return evidence about all slots in all bits, priced in bytes, and slot and bits of each.

    evidence: with "probes". The slots that are not rounded come first, with their names: they are
    the first forms, whose price at full rank is that of the dense model. Raises InputError if the
    slots were not probed.
    """
    probes: Probes = evidence.get("probes")
    spectra: dict[Slot, Spectrum] = {}
    curves: dict[Slot, LossCurve] = {}
    origin: dict[Slot, tuple[Slot, int]] = {}
    for bits in (0, *BITS):
        for slot, s in evidence.spectra.items():
            if bits and not quantization.can_round(slot):
                continue
            measured = quantization.slots.get(slot)
            named = _in_bits(s, bits)
            extra = 0 if measured is None else measured.extra[bits]
            spectra[named.slot] = replace(named, cost=_priced(s.cost, bits, extra, itemsize))
            curves[named.slot] = _curve(probes.curves[slot], quantization, s, bits)
            origin[named.slot] = slot, bits
    priced = evidence.restricted(spectra)
    return priced.with_measurement("probes", replace(probes, curves=curves)), origin


def _in_bits(s: Spectrum, bits: int) -> Spectrum:
    """Return the spectrum as a slot with another name, in another form of its part."""
    if not bits:
        return s
    layer, name = s.slot
    form = s.form or Form(name, "")
    return replace(
        s,
        slot=(layer, f"{name} in {bits} bits"),
        form=Form(form.part, f"{form.name} in {bits} bits"),
    )


def _curve(curve: LossCurve, quantization: Quantization, s: Spectrum, bits: int) -> LossCurve:
    """Return the predicted increase in loss of a slot that is truncated and rounded."""
    if not bits:
        return curve
    measured = quantization.slots[s.slot]
    full = torch.tensor([measured.full[bits]], dtype=torch.float64)
    if not measured.rank:
        return LossCurve(curve.ranks, curve.increase + full)
    parameters = _parameters(s.cost, tuple(curve.ranks[:-1]))
    below = measured.below[bits] / s.cost.parameters(measured.rank) * parameters
    return LossCurve(curve.ranks, curve.increase + torch.cat((below, full)))


@lru_cache(maxsize=256)  # most layers have slots of the same sizes
def _parameters(cost: Cost, ranks: tuple[int, ...]) -> Tensor:
    """Return the parameters at ranks below full, [ranks], float64."""
    return torch.tensor([cost.parameters(rank) for rank in ranks], dtype=torch.float64)


@lru_cache(maxsize=256)  # most layers have slots of the same sizes
def _priced(cost: Cost, bits: int, extra: int, itemsize: int) -> Cost:
    """Return the cost with bytes in place of parameters."""
    below = [rounded_bytes(cost, rank, bits, itemsize) + extra for rank in ranks_below(cost)]
    return with_prices(cost, below, rounded_bytes(cost, cost.full, bits, itemsize))


def with_more_bits(
    ranks: Mapping[Slot, int],
    bits: Mapping[Slot, int],
    evidence: Evidence,
    remaining: float,
    itemsize: int,
) -> dict[Slot, int]:
    """Return the bits of slots, raised while `remaining` bytes allow it.

    Forms differ by many bytes, so the multiplier can leave some of the budget. The slot that gains
    most per byte comes first. evidence: with "quantization", about the slots before `with_bits`.
    """
    raised = dict(bits)
    quantization: Quantization = evidence.get("quantization")

    def next_step(slot: Slot) -> tuple[float, int] | None:
        s, rank, now = evidence.spectra[slot], ranks[slot], raised[slot]
        if not now:
            return None
        more = _next_bits(now)
        gain = quantization.rise(s, rank, now) - quantization.rise(s, rank, more)
        added = quantization.bytes(s, rank, more, itemsize)
        price = added - quantization.bytes(s, rank, now, itemsize)
        return -gain / max(price, 1), price

    def advance(slot: Slot) -> None:
        raised[slot] = _next_bits(raised[slot])

    take_steps(raised, remaining, next_step, advance)
    return raised


def _next_bits(bits: int) -> int:
    """Return the next larger number of bits; 0, not rounded, after the largest."""
    return BITS[BITS.index(bits) - 1] if bits < BITS[0] else 0


def with_equal_bits(
    spectra: Mapping[Slot, Spectrum], quantization: Quantization, limit: int, itemsize: int
) -> dict[Slot, int] | None:
    """Return slots, a form of each part, with the largest number of bits for all that fits.

    Slots at full rank have at most `limit` bytes. Slots that are not quantized have 0 bits. None if
    they do not fit in the least number of bits.
    """
    chosen: dict[Slot, Spectrum] = {}
    for forms in by_part(spectra).values():
        quantized = [form for form in forms.values() if all(map(quantization.can_round, form))]
        chosen |= quantized[0] if quantized else next(iter(forms.values()))
    for bits in (0, *BITS):
        bits_of = {slot: bits if quantization.can_round(slot) else 0 for slot in chosen}
        sizes = (
            quantization.bytes(s, s.cost.full, bits_of[slot], itemsize)
            for slot, s in chosen.items()
        )
        if sum(sizes) <= limit:
            return bits_of
    return None
