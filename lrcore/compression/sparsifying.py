"""The settings of 2:4 sparsity."""

from dataclasses import dataclass

from ..settings import check_settings, setting


@dataclass(frozen=True)
class Sparsifying:
    """By what two of every four weights go; see `sparsify`.

    Raises InputError where it is made with a value out of its range.
    """

    criterion: str = setting(
        "sparsegpt",
        "sparsegpt (the others make up for what goes), wanda or pruner_zero (they stay; the latter "
        "reads gradients).",
        ("sparsegpt", "wanda", "pruner_zero"),
    )

    def __post_init__(self) -> None:
        check_settings(self)
