"""Command `sweep`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..recipes.recipe import read_values
from ..system.settings import setting
from .arguments import (
    AsJson,
    Sharing,
    ToTrackio,
    entries,
    load_dense,
    make_tracker,
    numbers,
)
from .console import progress, show
from .flags import flags

app = typer.Typer()


@dataclass(frozen=True)
class Lists(Sharing):
    """Lists that replace the lists of the file, and what shares the work."""

    methods: str | None = setting(None, "Methods, separated by commas, as in the following lists.")
    policies: str | None = setting(None, "Allocation policies.")
    ratios: str | None = setting(None, "Ratios to remove, such as 0.1,0.2.")
    calibration_sets: str | None = setting(None, "Calibration data sets.")
    sample_counts: str | None = setting(None, "Numbers of calibration windows.")
    seeds: str | None = setting(None, "Seeds of the calibration windows.")
    temperatures: str | None = setting(None, "Temperatures of policy softmax.")
    rows: str | None = setting(
        None, "File with rows: steps, or chains of steps, for each combination of the lists."
    )
    cross: str | None = setting(None, "Data sets, each for calibration and for evaluation.")
    speed: bool = setting(
        False, "Measure speed, alternating with the dense model.", flag="measure-speed"
    )

    def applied(self, sweep: Any) -> Any:
        """Return a copy of a sweep with these lists. Raises InputError for an invalid list."""

        lists: dict[str, Any] = {
            name: read(getattr(self, name))
            for name, read in READ.items()
            if getattr(self, name) is not None
        }
        sweep = replace(sweep, **lists, speed=self.speed or sweep.speed)
        from ..runs.sweep import cross_calibration, sweep_file

        if self.rows is not None:
            sweep = sweep.with_rows(read_values(sweep_file(self.rows)))
        if self.cross is None:
            return sweep
        study = cross_calibration(sweep.base, entries(self.cross))
        return replace(
            sweep, calibration_sets=study.calibration_sets, evaluations=study.evaluations
        )


@app.command()
@flags()
def sweep(
    recipe: Annotated[
        Path,
        typer.Argument(
            metavar="RECIPE",
            help="Sweep or recipe (.json, .yaml), or the name of a built-in table of a paper.",
        ),
    ],
    lists: Lists,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Replaces the model of the recipe.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder of cells, tables and report; an unfinished sweep in it is continued.",
        ),
    ] = Path("sweep"),
    trackio: ToTrackio = None,
    as_json: AsJson = False,
) -> None:
    """Run methods x policies x ratios x calibration sets, or rows of steps.

    Finished cells are not repeated. Writes table.csv, table.json and report.html.
    """

    progress.waits_for("load")
    import lrcore

    from ..runs import sweep_report

    tracker = make_tracker(trackio)
    planned = lists.applied(lrcore.Sweep.read(recipe))
    if model is not None:
        planned = replace(planned, base=planned.base.with_(model=model))
    with lists.workers(planned.base.device):
        rows = lrcore.run_sweep(load_dense(planned.base), planned, out, progress)
    files = sweep_report.write_tables(rows, planned.to_dict(), out)
    if tracker:
        tracker.log_sweep(rows, planned.to_dict())
    if as_json:
        show(True, {"files": files}, "rows", [row.to_dict() for row in rows])
        return
    show(False, {"files": files}, "rows", sweep_report.different_columns(rows))


_counts = numbers(int, "Enter whole numbers separated by commas, such as 16,64")
READ: dict[str, Callable[[str], list[Any]]] = {
    "methods": entries,
    "policies": entries,
    "ratios": numbers(float, "Enter --ratios between 0 and 1 separated by commas, such as 0.1,0.2"),
    "temperatures": numbers(
        float, "Enter positive --temperatures separated by commas, such as 0.05,0.1"
    ),
    "calibration_sets": entries,
    "sample_counts": _counts,
    "seeds": _counts,
}
