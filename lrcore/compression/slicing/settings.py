"""The settings of slicing, besides the share that a recipe removes."""

from dataclasses import dataclass

from ...settings import check_settings, setting

ROTATIONS = ("block", "one")


@dataclass(frozen=True)
class Slicing:
    """In which basis the residual stream is cut, and to what widths; see `slice_hidden`.

    Raises InputError where it is made with a value out of its range.
    """

    rotations: str = setting(
        "block", "block: a basis before every attention and MLP; one: the same for all.", ROTATIONS
    )
    multiple: int = setting(1, "The width is a multiple of it, such as 8.", low=1)

    def __post_init__(self) -> None:
        check_settings(self)
