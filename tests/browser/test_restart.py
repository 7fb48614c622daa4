"""A server that is killed during a job and started again."""

import csv
import signal
import time

import pytest

from .page import PATIENCE, RETRY
from .test_jobs import cancel, make_run, running

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True


def start_again(workbench, row) -> None:
    """Press "Start again" until it works: the list above the job may grow while the page
    analyzes.
    """
    workbench.press_until(
        lambda: row.get_by_text("Start again").click(timeout=RETRY),
        lambda: not row.count(),
        "the job does not start again",
    )


def test_runs_survive_a_restart_and_an_interrupted_job_can_be_restarted(open_page, server):
    workbench = open_page()
    make_run(workbench, "kept over a restart")
    workbench.start("interrupted", samples=20_000, seq_len=8)
    job = running(workbench)["job"]
    server.stop(signal.SIGKILL)
    workbench.page.context.close()
    server.start()
    workbench = open_page()
    workbench.tab("Runs & export")
    workbench.page.locator("#runs-table [role=gridcell]", has_text="kept over a restart").wait_for()
    workbench.tab("Compress")
    row = workbench.locator(f".job[data-job-id='{job}'][data-state=interrupted]")
    row.wait_for()
    start_again(workbench, row)
    cancel(workbench, running(workbench)["job"])  # it would take minutes
    workbench.until_idle()


@pytest.mark.soak
def test_a_killed_sweep_resumes_with_the_unsaved_runs(open_page, server):
    workbench = open_page()
    workbench.tab("Compress")
    workbench.type_into("measure-samples", "2")
    workbench.type_into("measure-seq-len", "64")
    workbench.experiment("Sweep")
    workbench.choose_all("sweep-methods", ["svd", "a3"])
    workbench.type_into("sweep-ratios", "0.12, 0.22, 0.32, 0.42")
    runs = server.folder / "runs"
    before = {path.parent for path in runs.glob("*/report.json")}

    def made() -> set:
        """Return the complete new runs; a run in progress has a hidden folder."""
        return {path.parent for path in runs.glob("[!.]*/report.json")} - before

    workbench.click("#start-sweep")
    end = time.monotonic() + PATIENCE
    while len(made()) < 3:  # polls the disk, because the page may be slower than the sweep
        assert time.monotonic() < end, "the sweep saves no runs"
        time.sleep(0.02)
    server.stop(signal.SIGKILL)
    workbench.page.context.close()
    saved_times = {path: (path / "report.json").stat().st_mtime_ns for path in made()}
    assert 3 <= len(saved_times) < 8
    server.start()
    workbench = open_page()
    workbench.tab("Compress")
    row = workbench.locator(".job[data-state=interrupted]", has_text="Sweep of 8 runs")
    row.wait_for()
    start_again(workbench, row)
    done = workbench.locator(".job.done", has_text="Sweep of 8 runs")
    done.wait_for()
    assert len(made()) == 8
    assert {path: (path / "report.json").stat().st_mtime_ns for path in saved_times} == saved_times
    assert done.locator("pre").text_content().count("already saved") == len(saved_times)
    table = workbench.saved(done.locator("button[data-file='table.csv']"))
    rows = list(csv.DictReader(table.splitlines()))
    assert [(row["method"], row["ratio"]) for row in rows] == [("dense", "0.0")] + [
        (method, f"0.{i}2") for method in ("svd", "a3") for i in range(1, 5)
    ]
    assert all(float(row["perplexity"]) > 1 for row in rows)
