"""The settings of bases that layers share."""

from dataclasses import dataclass

from ..settings import check_settings, setting


@dataclass(frozen=True)
class Sharing:
    """How many neighbouring layers have one basis; see `share_bases`.

    Raises InputError where it is made with a value out of its range.
    """

    group: int = setting(2, "Neighbouring layers that share a basis.", low=1)

    def __post_init__(self) -> None:
        check_settings(self)
