"""Tables of papers as jobs: previews, results and resuming."""

import csv
import io
import json
from dataclasses import replace

import pytest
from page_values import click

import lrcore
from lrcore.runs.sweep import included_sweeps
from lrcore.runs.sweep_report import tables as sweep_tables
from lrcore.system.errors import Cancelled
from workbench.jobs import KINDS, TableJob
from workbench.jobs.paper_table import table_files
from workbench.state.job_record import ENDED, JobRecord
from workbench.state.store import Store
from workbench.tabs.experiments import paper_table as table
from workbench.views import job_markup
from workbench.widgets import polling
from workbench.widgets.form import input_values


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4)


@pytest.fixture(scope="module")
def sweep(recipe, story_file):
    measured = lrcore.EvaluationSettings(str(story_file), 2, 16)
    rows = ["compress", ["compress", {"quantize": {"bits": 4, "group": 8}}]]
    return lrcore.Sweep(recipe.with_(model="demo-llama"), evaluations=(measured,), rows=rows)


def test_each_included_table_lists_its_rows_before_the_start():
    for name in included_sweeps():
        chosen, rows = table.select_included(name)
        cells = lrcore.Sweep.from_dict(chosen["sweep"]).cells()
        assert cells == lrcore.Sweep.read(name).cells()
        assert rows.count("<li>") == len(cells)
    chosen, rows = table.select_included("/etc/passwd")
    assert chosen is None
    assert "<li>" not in rows


def test_a_table_equals_that_of_the_command_line_and_is_reused(recipe, sweep, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps(sweep.to_dict()), encoding="utf-8")
    chosen, rows, _ = table.load_file(str(path))
    assert "4 bit" in rows
    assert table.with_model(sweep, input_values(recipe)).base == recipe
    store = Store(tmp_path / "runs", KINDS)
    table.start(store, chosen, *input_values(recipe))
    (record,) = store.jobs.all()
    while record.state not in ENDED:
        record.canceled.wait(0.02)
    assert record.state == "done", record
    assert record.job == TableJob("own", replace(sweep, base=recipe))
    assert "2 rows; lowest perplexity" in record.outcome
    assert "table.csv" in job_markup.ended_actions(record)
    pressed = click(action="table", job=record.id, file="table.csv")
    downloaded = json.loads(polling.act(store, [], pressed)[0])["text"]
    rows = lrcore.run_sweep(lrcore.load(recipe.model), record.job.sweep, tmp_path / "sweep")
    expected = sweep_tables(rows, record.job.sweep.to_dict())["table.csv"]
    assert list(csv.DictReader(io.StringIO(downloaded))) == list(
        csv.DictReader(io.StringIO(expected))
    )
    repeated = JobRecord(record.job)
    record.job.run(store, repeated)
    assert sum("already saved" in line for line in repeated.log) == 3  # with the dense model
    assert not store.runs.all()
    polling.act(store, [], click(action="forget", job=record.id))
    assert not store.jobs.all()
    assert not list((store.runs.folder / ".tables").rglob(f"{record.id}*"))


def test_a_canceled_table_resumes_after_the_saved_rows(recipe, sweep, tmp_path):
    store = Store(tmp_path / "runs", KINDS)
    job = TableJob("own", replace(sweep, base=recipe))

    class Stopped(JobRecord):
        def add_log(self, line):
            super().add_log(line)
            if line.startswith("row 2 of 2"):
                self.canceled.set()

    with pytest.raises(Cancelled):
        job.run(store, Stopped(job))
    repeated = JobRecord(job)
    job.run(store, repeated)
    assert sum("already saved" in line for line in repeated.log) == 2  # the dense model and row 1
    assert set(table_files(store, repeated.id, job)) == {"table.csv", "table.json", "report.html"}


def test_a_missing_or_impossible_table_is_refused(recipe, sweep, tmp_path):
    store = Store(tmp_path / "runs", KINDS)
    with pytest.raises(lrcore.InputError, match="No table is chosen"):
        table.start(store, None, *input_values(recipe))
    job = TableJob("own", replace(sweep, base=recipe.with_(budget="kv", method="svd"), rows=()))
    record = JobRecord(job)
    with pytest.raises(lrcore.InputError, match="KV"):
        job.run(store, record)
    assert any("failed" in line for line in record.log)
    with pytest.raises(lrcore.InputError, match="Start the job again"):
        table_files(store, record.id, job)
