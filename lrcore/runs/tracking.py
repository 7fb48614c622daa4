"""Export of results to the local store of trackio (an optional dependency); `trackio show` displays
them.

The code writes to trackio's local store directly instead of calling `trackio.init`. That function
requests the user's name from the hub, and it sends all values to a remote host if an environment
variable names one. With this module no data leaves the machine.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..system.as_json import json_text
from ..system.errors import InputError
from .runs import Run
from .sweep_rows import SweepRow, column_names


class Tracker:
    """A trackio project.

    Raises InputError if trackio cannot be imported or rejects the name.
    """

    def __init__(self, project: str) -> None:
        if not project.strip():
            raise InputError("The name of the trackio project is empty. Give a name.")
        try:
            from trackio.sqlite_storage import SQLiteStorage
        except ImportError as error:
            raise InputError(
                f"trackio cannot be imported ({error}). Run `pip install trackio`, or omit "
                "--trackio."
            ) from error
        try:
            SQLiteStorage.validate_project_name(project)
        except ValueError as error:
            raise InputError(
                f"'{project}' is not a valid name of a trackio project: {error}"
            ) from error
        self.project, self._store = project, SQLiteStorage

    def log(self, name: str, config: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
        """Log a run: the settings, and the finite numbers among the figures; nested mappings become
        `outer/inner`.

        The same name and settings identify the same run: new figures become its next step, and
        equal figures are not written again.
        """
        numbers = dict(_numbers(figures))
        run = _digest([name, config])
        self._store.bulk_log(
            self.project,
            name,
            [numbers],
            steps=[None],
            config=dict(config),
            log_ids=[_digest([run, numbers])],
            run_id=run,
        )

    def log_run(self, run: Run) -> None:
        """Log a run: recipe, account, and evaluations by text and protocol."""
        results = {}
        for evaluation in run.evaluations:
            protocol = evaluation["protocol"]
            results[f"{protocol.get('source')}, {protocol.get('name', 'windows')}"] = {
                **evaluation,
                "protocol": None,
                "settings": None,
            }
        account = {} if run.account is None else run.account.to_dict()
        self.log(run.name, run.fields, account | results)

    def log_sweep(self, rows: Iterable[SweepRow], sweep: Mapping[str, Any]) -> None:
        """Log a run per measured row of a sweep. sweep: `Sweep.to_dict()`."""
        settings = [name for name in column_names("setting") if name != "error"]
        for row in rows:
            if row.error is None:
                values = row.to_dict()
                config = {
                    "model": sweep["model"],
                    **{name: values[name] for name in settings if name in values},
                    "protocol": row.protocol,
                }
                figures = {name: value for name, value in values.items() if name not in config}
                self.log(f"{row.title} on {row.measured_on}", config, figures)


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ):
            yield f"{prefix}{name}", value


def _digest(values: Any) -> str:
    return hashlib.sha256(json_text(values, sort_keys=True, default=str).encode()).hexdigest()[:32]
