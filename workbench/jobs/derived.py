"""Jobs that make a run of another run; it is measured as the first one was."""

from dataclasses import dataclass
from typing import ClassVar

import lrcore

from ..job import Job, Reporter
from ..store import Store
from .measuring import evaluate_run, load_dense
from .models import keep_run


@dataclass(frozen=True)
class QuantiseJob(Job):
    """A run with quantised weights, 8 to 2 bits each. run: its id; name: what it is called now."""

    kind: ClassVar[str] = "quantise"
    once: ClassVar[bool] = True

    run_id: str
    bits: int
    name: str = ""

    @property
    def title(self) -> str:
        return f"Quantise {self.name or self.run_id} to {self.bits} bit"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        run = store.runs.get(self.run_id)
        small = lrcore.quantise(store.small(run), self.bits, progress=reporter.progress)
        return [keep_derived(store, reporter, run, f"{run.name} · {self.bits} bit", small).id]


@dataclass(frozen=True)
class HealJob(Job):
    """A run trained for some steps against its dense model. run: its id.

    Stopped and started again, it goes on from the state that the training keeps in the run's
    folder.
    """

    kind: ClassVar[str] = "heal"
    once: ClassVar[bool] = True

    run_id: str
    healing: lrcore.Healing
    name: str = ""

    @property
    def title(self) -> str:
        return f"Heal {self.name or self.run_id}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        run = store.runs.get(self.run_id)
        teacher = load_dense(store, run.recipe, reporter)
        state = run.folder / "healing.safetensors"
        small = lrcore.heal(
            store.small(run),
            self.healing,
            teacher=teacher,
            state=state,
            progress=reporter.progress,
        )
        reporter.curve = list(small.step(lrcore.Healed).cross_entropy)
        made = keep_derived(store, reporter, run, f"{run.name} · healed", small)
        state.unlink(missing_ok=True)
        return [made.id]


def keep_derived(
    store: Store, reporter: Reporter, run: lrcore.Run, name: str, model: lrcore.LoadedModel
) -> lrcore.Run:
    """Keep what was made of a run as a run, and measure it by every protocol of the first one."""
    made = keep_run(store, reporter, run.recipe, name, model)
    for one in run.evaluations:
        if "settings" in one:
            evaluate_run(store, made, lrcore.EvaluationSettings(**one["settings"]), reporter)
    return made
