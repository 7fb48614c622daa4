"""Speeds of runs, alternating with the dense model, with and without merged factors."""

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
    """Return a store with a factorized run, and a run with narrower heads and MLPs."""
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


def measure_speed(store):
    """Measure the speed of all runs; return columns by name, the table and the log."""
    runs = store.runs.all()
    job = SpeedJob(tuple(run.id for run in runs))
    record = JobRecord(job)
    assert job.run(store, record) == [run.id for run in runs]
    (table,) = tables(runs, None, Results(speeds(store, runs)))
    return {column.title: column for column in table.runs}, table, record.log


def test_a_factorized_run_is_also_measured_with_merged_factors(store, dense_is_faster) -> None:
    columns, table, _ = measure_speed(store)
    assert columns["svd_llm"].values.keys() >= MERGED | {"prefill", "decode"}
    assert not columns["a3"].values.keys() & MERGED
    labels = [METRICS[name].label for name in table.rows]
    assert "Decode speed, factors merged" in labels
    dense = table.dense.values
    assert dense["merged_decode"] == dense["decode"]


def test_without_a_benefit_of_merging_a_run_has_one_speed(store, monkeypatch) -> None:
    monkeypatch.setattr(
        merging,
        "_seconds",
        lambda modules, inputs: [float(isinstance(module, torch.nn.Linear)) for module in modules],
    )
    columns, table, _ = measure_speed(store)
    assert not columns["svd_llm"].values.keys() & MERGED
    assert not set(table.rows) & MERGED


def test_without_memory_for_merging_the_log_has_a_message(
    store, dense_is_faster, monkeypatch
) -> None:
    monkeypatch.setattr(merging, "free_memory", lambda: 10)
    columns, _, log = measure_speed(store)
    assert not columns["svd_llm"].values.keys() & MERGED
    assert any("The matrices of the factors take" in line for line in log)
