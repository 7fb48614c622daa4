"""The settings of sparsity."""

from dataclasses import dataclass

from ..errors import InputError
from ..settings import check_settings, setting

PATTERNS = ("2:4", "unstructured")
CRITERIA = ("sparsegpt", "wanda", "pruner_zero", "shrinkage")


@dataclass(frozen=True)
class Sparsifying:
    """By what which weights go; see `sparsify`.

    Raises InputError where it is made with a value out of its range.
    """

    criterion: str = setting(
        "sparsegpt",
        "sparsegpt (the others make up for what goes), wanda or pruner_zero (they stay; the latter "
        "reads gradients), or shrinkage (LatentLLM's sparse matrices, unstructured).",
        CRITERIA,
    )
    pattern: str = setting(
        "2:4", "2:4 (two of every four), or unstructured (a share, wherever they are).", PATTERNS
    )
    kept: float = setting(0.5, "Of unstructured: the share of the weights that stays.")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.criterion == "shrinkage" and self.pattern != "unstructured":
            raise InputError(
                "Criterion 'shrinkage' chooses among all weights of a matrix. Use it with pattern "
                "'unstructured'."
            )
        if not 0 < self.kept < 1 or (self.pattern == "2:4" and self.kept != 0.5):
            raise InputError(
                f"kept = {self.kept}: give a share between 0 and 1 with pattern 'unstructured'; "
                "2:4 keeps a half."
            )

    @property
    def share(self) -> float | None:
        """The share that stays; None of 2:4."""
        return self.kept if self.pattern == "unstructured" else None

    @property
    def title(self) -> str:
        """In a few words: "2:4" or "50% sparse"."""
        return "2:4" if self.share is None else f"{1 - self.kept:.0%} sparse"
