"""What a plan may cost: a budget, and the steps in which ranks may grow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import InputError
from .spectra import Cost, Slot, Spectrum

Spectra = Mapping[Slot, Spectrum]


@dataclass(frozen=True)
class Budget:
    """What a plan may cost. kind: "params", "total" or "kv". limit: the most that all slots together may cost, in parameters or in
    cached numbers per token. dense: what they cost untouched."""

    kind: str
    limit: int
    dense: int

    def price(self, cost: Cost, rank: int) -> int:
        return cost.kv(rank) if self.kind == "kv" else cost.parameters(rank)

    def counts(self, cost: Cost) -> bool:
        """Whether the rank of a slot changes what this budget counts."""
        return self.kind != "kv" or cost.kv_per_rank > 0

    @property
    def keep(self) -> float:
        return self.limit / self.dense


def make_budget(kind: str, ratio: float, spectra: Spectra, decoder_linear: int, total: int) -> Budget:
    """The budget that removes `ratio` of what `kind` names. decoder_linear and total are the dense model's parameter counts.

    Raises InputError where the method cannot shrink what is asked for, or not by that much.
    """
    whole = {"params": decoder_linear, "total": total}
    counted = [s.cost for s in spectra.values() if kind != "kv" or s.cost.kv_per_rank > 0]
    if not counted:
        raise InputError("This method leaves the KV cache as it is. For budget 'kv' choose one that narrows heads, such as a3 or modegpt.")
    dense = sum(cost.kv(cost.full) if kind == "kv" else cost.parameters(cost.full) for cost in counted)
    least = sum(cost.kv(cost.step) if kind == "kv" else cost.parameters(cost.step) for cost in counted)
    base = whole.get(kind, sum(s.cost.kv_dense for s in spectra.values()))
    limit = dense - math.ceil(ratio * base - 1e-9)
    if limit < least:
        most = (dense - least) / base
        raise InputError(f"A ratio of {ratio:g} of '{kind}' is more than this method can remove here; at most {most:.3f}. Lower the ratio.")
    return Budget(kind, limit, dense)


def next_rank(cost: Cost, rank: int) -> int | None:
    """The next rank that makes sense above `rank`, or None at full."""
    if rank >= cost.full:
        return None
    return rank + cost.step if rank + cost.step <= cost.cap else cost.full
