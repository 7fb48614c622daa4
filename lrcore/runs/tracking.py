"""Figures in the local store of trackio (an extra), for those who keep their experiments there;
`trackio show` draws them.

Written through trackio's own store and not by `trackio.init`, which asks the hub for the user's
name and sends what it is given to another host where an environment variable names one. Here
nothing leaves the machine.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..as_json import json_text
from ..errors import InputError
from .runs import Run
from .sweep_rows import SweepRow, named


class Tracker:
    """One project of trackio's.

    Raises InputError where trackio cannot be imported or does not allow the name.
    """

    def __init__(self, project: str) -> None:
        if not project.strip():
            raise InputError("A project of trackio's needs a name, and it is empty. Give one.")
        try:
            from trackio.sqlite_storage import SQLiteStorage
        except ImportError as error:
            raise InputError(
                f"trackio cannot be imported ({error}). Run `pip install trackio`, or leave "
                "--trackio out."
            ) from error
        try:
            SQLiteStorage.validate_project_name(project)
        except ValueError as error:
            raise InputError(
                f"'{project}' is no name for a project of trackio's: {error}"
            ) from error
        self.project, self._store = project, SQLiteStorage

    def log(self, name: str, config: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
        """One run: what was asked for, and the finite numbers among the figures, those of nested
        mappings under `outer/inner`.

        The same name and configuration is the same run: other figures become its next step, the
        same ones are not written twice.
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
        """A kept run: its recipe, its account, and what was measured, by text and protocol."""
        results = {}
        for one in run.evaluations:
            protocol = one["protocol"]
            results[f"{protocol.get('source')}, {protocol.get('name', 'windows')}"] = {
                **one,
                "protocol": None,
                "settings": None,
            }
        account = {} if run.account is None else run.account.to_dict()
        self.log(run.name, run.fields, account | results)

    def log_sweep(self, rows: Iterable[SweepRow], sweep: Mapping[str, Any]) -> None:
        """One run per row of a sweep that was measured. sweep: `Sweep.to_dict()`."""
        settings = [name for name in named("setting") if name != "error"]
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
