"""How long work reports that it goes on."""

from collections.abc import Callable

# progress(stage, done, total): called once per unit of work, a layer or a batch. It may raise
# `Cancelled` to stop there.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """The callback of somebody who does not want to know."""
