"""What an export had to do to a model, and what size and cache remain, in words."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Filled:
    """What layers were filled up to, and how many of them."""

    layers: int = 0
    to: int = 0

    @classmethod
    def of(cls, pairs: list[tuple[int, int]]) -> "Filled":
        """From how much every layer has and is to have."""
        more = [to for own, to in pairs if own < to]
        return cls(len(more), max(more, default=0))


@dataclass(frozen=True)
class Changes:
    """What was done to a model.

    place: "file" or "folder". factored: matrices that were multiplied out. narrowed: layers whose
    heads were filled to their full size. heads: of keys and values that were added; widths,
    experts: of MLPs and routed experts. parameters, cached: of the model, and there; cached numbers
    are per token.
    """

    place: str
    parameters: tuple[int, int]
    cached: tuple[int, int]
    factored: int = 0
    narrowed: int = 0
    heads: Filled = Filled()
    widths: Filled = Filled()
    experts: Filled = Filled()

    @classmethod
    def none(cls, place: str, parameters: int, cached: int) -> "Changes":
        """Of a model that goes there as it is."""
        return cls(place, (parameters, parameters), (cached, cached))

    def clauses(self) -> Iterator[str]:
        """A clause for each."""
        if self.factored:
            yield f"{self.factored} low-rank or quantised matrices were multiplied out"
        if self.narrowed:
            yield f"the heads of {self.narrowed} layers were filled with zeros to their full size"
        if self.heads.layers:
            yield (
                f"{self.heads.layers} layers have heads of zeros, up to {self.heads.to} of keys "
                "and values"
            )
        for name, filled in (("MLPs", self.widths), ("experts", self.experts)):
            if filled.layers:
                yield (
                    f"the {name} of {filled.layers} layers were filled with zeros to the widest, "
                    f"{filled.to}"
                )
        own, there = self.parameters
        if own != there:
            yield f"the {self.place} has {there:,} parameters, the model {own:,}"
        cached, there = self.cached
        if cached < there:
            yield f"the cache holds {there:,} numbers per token instead of {cached:,}"
