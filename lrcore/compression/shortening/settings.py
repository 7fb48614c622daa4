"""The settings of dropping layers."""

from dataclasses import MISSING, dataclass

from ...settings import check_settings, setting


@dataclass(frozen=True)
class Shortening:
    """How many decoder layers are dropped, and by what measure; see `shorten`.

    Raises InputError where it is made with a value out of its range.
    """

    layers: int = setting(MISSING, "How many decoder layers to drop.", low=1)
    by: str = setting(
        "influence",
        "influence (ShortGPT), or loss (SLEB): one after another, by the loss without it.",
        ("influence", "loss"),
    )

    def __post_init__(self) -> None:
        check_settings(self)
