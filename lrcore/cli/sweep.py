"""The command that runs a sweep. Heavy imports wait until it runs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..settings import setting
from .arguments import AsJson, ToTrackio, load_dense
from .console import progress, show
from .flags import flags

app = typer.Typer()


@dataclass(frozen=True)
class Lists:
    """Lists that replace those of the file, each with commas between its entries."""

    methods: str | None = setting(None, "With commas between; as are the following.")
    policies: str | None = setting(None, "Allocation policies.")
    ratios: str | None = setting(None, "Shares to remove, such as 0.1,0.2.")
    calibration_sets: str | None = setting(None, "Data sets to calibrate on.")
    cross: str | None = setting(None, "Data sets: calibrate on each, measure on each.")
    speed: bool = setting(False, "Measure speed in turns with the dense model.")

    def applied(self, sweep: Any) -> Any:
        """A copy of the sweep with these lists. Raises InputError for what is no list of it."""
        import lrcore

        names = ("methods", "policies", "ratios", "calibration_sets")
        given = {name: getattr(self, name) for name in names}
        lists: dict[str, Any] = {
            name: _entries(text) for name, text in given.items() if text is not None
        }
        if "ratios" in lists:
            lists["ratios"] = _ratios(lists["ratios"])
        sweep = replace(sweep, **lists, speed=self.speed or sweep.speed)
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
            metavar="RECIPE", help="A recipe (.json, .yaml), with lists as below or without."
        ),
    ],
    lists: Lists,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for cells, tables and page; goes on with one."),
    ] = Path("sweep"),
    trackio: ToTrackio = None,
    as_json: AsJson = False,
) -> None:
    """Try methods x policies x ratios x calibration sets.

    Go on where it stopped; write table.csv, table.json and report.html.
    """
    import lrcore

    from ..runs import sweep_page

    tracker = lrcore.Tracker(trackio) if trackio else None
    planned = lists.applied(lrcore.Sweep.read(recipe))
    rows = lrcore.run_sweep(load_dense(planned.base), planned, out, progress)
    files = sweep_page.write_tables(rows, planned.to_dict(), out)
    if tracker:
        tracker.log_sweep(rows, planned.to_dict())
    shown = [row.to_dict() if as_json else sweep_page.plain(row) for row in rows]
    show(as_json, {"files": files}, "rows", shown)


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _ratios(entries: list[str]) -> list[float]:
    try:
        return [float(entry) for entry in entries]
    except ValueError:
        raise InputError(
            "--ratios reads shares between 0 and 1 with commas, such as 0.1,0.2; got "
            f"'{','.join(entries)}'."
        ) from None
