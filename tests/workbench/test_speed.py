"""Speeds of runs on the page: in turns with the dense model, and with factors merged."""

import pytest
import torch

import lrcore
from lrcore.compression.steps import merge_factors as merging
from workbench.jobs import KINDS, CompressJob, SpeedJob
from workbench.state.job_record import JobRecord
from workbench.state.store import Store
from workbench.tabs.compare.metrics import METRICS, Results, speeds, tables

MERGED = {"merged_prefill", "merged_decode"}


@pytest.fixture(scope="module")
def store(tmp_path_factory, tiny_llama, story_file):
    """Two runs: one in factors, and one with narrower heads and MLPs."""
    store = Store(tmp_path_factory.mktemp("runs"), KINDS)
    for method in ("svd_llm", "a3"):
        recipe = lrcore.Recipe(
            str(tiny_llama), data=str(story_file), samples=2, seq_len=16, ratio=0.4, method=method
        )
        job = CompressJob(recipe, method)
        job.run(store, JobRecord(job))
    return store


@pytest.fixture
def dense_is_faster(monkeypatch):
    monkeypatch.setattr(
        merging,
        "_seconds",
        lambda modules, inputs: [
            float(not isinstance(module, torch.nn.Linear)) for module in modules
        ],
    )


def measured(store):
    """The columns of the runs after their speed was measured, by name, and the job's log."""
    runs = store.runs.all()
    job = SpeedJob(tuple(run.id for run in runs))
    record = JobRecord(job)
    assert job.run(store, record) == [run.id for run in runs]
    (table,) = tables(runs, None, Results(speeds(store, runs)))
    return {column.title: column for column in table.runs}, table, record.log


def test_a_run_in_factors_is_measured_merged_too(store, dense_is_faster) -> None:
    columns, table, _ = measured(store)
    assert columns["svd_llm"].values.keys() >= MERGED | {"prefill", "decode"}
    assert not columns["a3"].values.keys() & MERGED
    labels = [METRICS[name].label for name in table.rows]
    assert "Decode speed, factors merged" in labels
    dense = table.dense.values
    assert dense["merged_decode"] == dense["decode"]


def test_factors_that_are_faster_have_one_speed(store, monkeypatch) -> None:
    monkeypatch.setattr(
        merging,
        "_seconds",
        lambda modules, inputs: [float(isinstance(module, torch.nn.Linear)) for module in modules],
    )
    columns, table, _ = measured(store)
    assert not columns["svd_llm"].values.keys() & MERGED
    assert not set(table.rows) & MERGED


def test_where_memory_does_not_suffice_the_log_says_so(store, dense_is_faster, monkeypatch) -> None:
    monkeypatch.setattr(merging, "free_memory", lambda: 10)
    columns, _, log = measured(store)
    assert not columns["svd_llm"].values.keys() & MERGED
    assert any("The matrices of the factors take" in line for line in log)
