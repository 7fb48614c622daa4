"""Progress callbacks."""

from collections.abc import Callable

# progress(stage, done, total): called once per unit of work, such as a layer or a batch. It can
# raise `Cancelled` to stop the work.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Ignore the progress."""
