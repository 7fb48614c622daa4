"""The command that runs a sweep. Heavy imports wait until it runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..recipe import read_values
from ..settings import setting
from .arguments import CLUSTER, AsJson, ToTrackio, load_dense, on_cluster
from .console import progress, show
from .flags import flags

app = typer.Typer()


@dataclass(frozen=True)
class Lists:
    """Lists that replace those of the file, each with commas between its entries; and where the
    cells are made.
    """

    methods: str | None = setting(None, "With commas between; as are the following.")
    policies: str | None = setting(None, "Allocation policies.")
    ratios: str | None = setting(None, "Shares to remove, such as 0.1,0.2.")
    calibration_sets: str | None = setting(None, "Data sets to calibrate on.")
    sample_counts: str | None = setting(None, "Numbers of calibration windows.")
    seeds: str | None = setting(None, "Seeds of the calibration windows.")
    temperatures: str | None = setting(None, "Temperatures of policy softmax.")
    rows: str | None = setting(
        None, "File with rows: what is done for each combination, steps and chains of steps."
    )
    cross: str | None = setting(None, "Data sets: calibrate on each, measure on each.")
    speed: bool = setting(False, "Measure speed in turns with the dense model.")
    cluster: str | None = setting(None, CLUSTER, metavar="ADDRESS")

    def applied(self, sweep: Any) -> Any:
        """A copy of the sweep with these lists. Raises InputError for what is no list of it."""
        import lrcore

        from ..runs.shipped import sweep_file

        lists: dict[str, Any] = {
            name: read(getattr(self, name))
            for name, read in READ.items()
            if getattr(self, name) is not None
        }
        sweep = replace(sweep, **lists, speed=self.speed or sweep.speed)
        if self.rows is not None:
            sweep = sweep.with_rows(read_values(sweep_file(self.rows)))
        if self.cross is None:
            return sweep
        study = lrcore.cross_calibration(sweep.base, _entries(self.cross))
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
            help="A recipe (.json, .yaml), with lists as below or without; or a name of a paper's "
            "table that ships.",
        ),
    ],
    lists: Lists,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="In the place of the recipe's model.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for cells, tables and page; goes on with one."),
    ] = Path("sweep"),
    trackio: ToTrackio = None,
    as_json: AsJson = False,
) -> None:
    """Try methods x policies x ratios x calibration sets, or rows of steps.

    Go on where it stopped; write table.csv, table.json and report.html.
    """
    progress.waits_for("load")
    import lrcore

    from ..runs import sweep_page

    tracker = None if trackio is None else lrcore.Tracker(trackio)
    planned = lists.applied(lrcore.Sweep.read(recipe))
    if model is not None:
        planned = replace(planned, base=planned.base.with_(model=model))
    with on_cluster(lists.cluster):
        rows = lrcore.run_sweep(load_dense(planned.base), planned, out, progress)
    files = sweep_page.write_tables(rows, planned.to_dict(), out)
    if tracker:
        tracker.log_sweep(rows, planned.to_dict())
    shown = [row.to_dict() for row in rows] if as_json else sweep_page.plain(rows)
    show(as_json, {"files": files}, "rows", shown)


def _entries(text: str) -> list[str]:
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise InputError(f"A list has commas between its entries, such as a,b; got '{text}'.")
    return entries


def _numbers(kind: Callable[[str], Any], rule: str) -> Callable[[str], list[Any]]:
    """How a list of numbers of a kind is read; of one that is none it says the rule."""

    def read(text: str) -> list[Any]:
        try:
            return [kind(entry) for entry in _entries(text)]
        except ValueError:
            raise InputError(f"{rule}; got '{text}'.") from None

    return read


_counts = _numbers(int, "A list of whole numbers has commas, such as 16,64")
READ: dict[str, Callable[[str], list[Any]]] = {
    "methods": _entries,
    "policies": _entries,
    "ratios": _numbers(float, "--ratios reads shares between 0 and 1 with commas, such as 0.1,0.2"),
    "temperatures": _numbers(
        float, "--temperatures reads positive numbers with commas, such as 0.05,0.1"
    ),
    "calibration_sets": _entries,
    "sample_counts": _counts,
    "seeds": _counts,
}  # how each list is read
