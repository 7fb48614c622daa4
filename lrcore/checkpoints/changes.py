"""Changes of a model by an export, and their description."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Padding:
    """Number of padded layers, and the size of the largest."""

    layers: int = 0
    size: int = 0

    @classmethod
    def of(cls, sizes: list[tuple[int, int]]) -> "Padding":
        """Count padded layers. sizes: of each layer before and after the export."""
        padded = [after for before, after in sizes if before < after]
        return cls(len(padded), max(padded, default=0))


@dataclass(frozen=True)
class Changes:
    """Changes of a model by an export.

    container: "file" or "folder". parameters, cached: of the model and of the export; cached
    numbers are per token. factored: matrices that were multiplied out. narrowed: layers whose heads
    were padded. heads: added heads of keys and values. widths, experts: of MLPs and of routed
    experts.
    """

    container: str
    parameters: tuple[int, int]
    cached: tuple[int, int]
    factored: int = 0
    narrowed: int = 0
    heads: Padding = Padding()
    widths: Padding = Padding()
    experts: Padding = Padding()

    @classmethod
    def none(cls, container: str, parameters: int, cached: int) -> "Changes":
        """Return the changes of an unchanged model."""
        return cls(container, (parameters, parameters), (cached, cached))

    def clauses(self) -> Iterator[str]:
        """Yield a description of each change."""
        if self.factored:
            yield f"{self.factored} low-rank or quantized matrices were multiplied out"
        if self.narrowed:
            yield f"the heads of {self.narrowed} layers were padded with zeros to their full size"
        if self.heads.layers:
            yield (
                f"{self.heads.layers} layers have heads of zeros, up to {self.heads.size} of keys "
                "and values"
            )
        for name, padding in (("MLPs", self.widths), ("experts", self.experts)):
            if padding.layers:
                yield (
                    f"the {name} of {padding.layers} layers were padded with zeros to the widest, "
                    f"{padding.size}"
                )
        before, after = self.parameters
        if before != after:
            yield f"the {self.container} has {after:,} parameters, the model {before:,}"
        before, after = self.cached
        if before < after:
            yield f"the cache holds {after:,} numbers per token instead of {before:,}"
