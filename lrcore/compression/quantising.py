"""The settings of quantisation."""

from dataclasses import dataclass

from ..settings import check_settings, setting


@dataclass(frozen=True)
class Quantising:
    """How many bits a weight has, and how many weights share a grid; see `quantise`.

    Raises InputError where it is made with a value out of its range.
    """

    bits: int = setting(8, "Of a quantised weight: 8 or 4.", low=1)
    group: int = setting(64, "Weights that share a scale and a zero point.", low=1)

    def __post_init__(self) -> None:
        check_settings(self)
