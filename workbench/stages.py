"""How long the stages of a job take, beside what was estimated soon after each began."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from . import text

EARLIEST = 1.0  # seconds after which a stage is estimated: a shorter one needs no estimate
MOST_STAGES = 60  # stages that a record keeps: a sweep has several for each of its runs
TIMES = "Time per stage"


@dataclass
class Stage:
    """One stage of a job, which a running job keeps up to date.

    part: which of several parts it belongs to, such as "run 2 of 6". first: units that were done
    when it began. seconds: up to its last unit, or in all. estimate: seconds for the whole of it,
    reckoned from its first units; None for a short one.
    """

    name: str
    part: str = ""
    first: int = 0
    seconds: float = 0.0
    estimate: float | None = None

    def reached(self, seconds: float, done: int, total: int) -> None:
        """It has run for so many seconds, and `done` of `total` units are done."""
        self.seconds = seconds
        made = done - self.first
        if self.estimate is None and seconds >= EARLIEST and made > 0 and done < total:
            self.estimate = seconds * (total - self.first) / made

    @property
    def says(self) -> str:
        """What it took, against its estimate."""
        estimated = "" if self.estimate is None else f" (estimated {short(self.estimate)})"
        return f"{self.name} {short(self.seconds)}{estimated}"


def short(seconds: float) -> str:
    """A duration; of less than ten seconds with tenths."""
    return f"{seconds:.1f} s" if seconds < 9.95 else text.duration(seconds)


def passed(stages: Sequence[Stage]) -> str:
    """The stages of a running job that are done, of its present part, in a line of HTML."""
    done = [one for one in stages[:-1] if one.part == stages[-1].part]
    if not done:
        return ""
    return f"<span class='stages'>{escape(' · '.join(one.says for one in done))}</span>"


def table(stages: Sequence[Stage]) -> str:
    """All stages of a job that has ended, as HTML; nothing where there are none."""
    if not stages:
        return ""
    parts = [f"{one.part} · {one.says}" if one.part else one.says for one in stages]
    rows = "".join(f"<li>{escape(part)}</li>" for part in parts)
    return f"<b>{TIMES}</b><ul class='stages'>{rows}</ul>"
