"""The settings of quantisation."""

from dataclasses import dataclass

from ..errors import InputError
from ..settings import check_settings, setting

BITS = (8, 4, 3, 2)
QUANTISERS = {
    "hqq": "half-quadratic, without data",
    "gptq": "columns make up for the errors of those before them, on calibration text",
}


@dataclass(frozen=True)
class Quantising:
    """How many bits a weight has, how many weights share a grid, and how they are rounded to it;
    see `quantise`.

    Raises InputError where it is made with a value out of its range.
    """

    bits: int = setting(8, "Of a quantised weight: 8, 4, 3 or 2.")
    group: int = setting(64, "Weights that share a scale and a zero point.")
    quantiser: str = setting(
        "hqq", "hqq, without data; or gptq, which reads calibration text.", QUANTISERS
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.bits not in BITS or not isinstance(self.group, int) or self.group < 8:
            raise InputError(
                f"Weights of {self.bits} bits in groups of {self.group} are not offered. Use 8, "
                "4, 3 or 2 bits, and groups of at least 8, such as 64."
            )

    @property
    def reads_text(self) -> bool:
        return self.quantiser == "gptq"
