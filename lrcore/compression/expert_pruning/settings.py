"""The settings of pruning experts."""

from dataclasses import MISSING, dataclass

from ...settings import check_settings, setting


@dataclass(frozen=True)
class ExpertPruning:
    """How many routed experts every layer loses, and by what measure; see `prune_experts`.

    Raises InputError where it is made with a value out of its range.
    """

    experts: int = setting(MISSING, "How many routed experts every layer loses.", low=1)
    by: str = setting(
        "activation",
        "activation (REAP), or loss: one after another, by the loss without it.",
        ("activation", "loss"),
    )
    merge: bool = setting(
        False,
        "By loss: an expert is merged into the one of most similar outputs where the loss is then "
        "less than without it.",
    )
    candidates: int = setting(
        8, "By loss: how many experts of least activation are tried each time.", low=1
    )

    def __post_init__(self) -> None:
        check_settings(self)
