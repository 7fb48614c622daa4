"""The server is killed in the middle of a job and started again."""

import csv
import signal
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True


def test_runs_stay_and_an_interrupted_job_is_offered_again(open_page, server):
    workbench = open_page()
    workbench.start("kept over a restart")
    workbench.page.wait_for_selector(".job.done")
    workbench.start("interrupted", samples=20_000, seq_len=8)
    job = workbench.until(
        lambda: (s := workbench.status())["state"] == "running" and s["total"] > 1 and s["job"],
        60,
        "no job runs",
    )
    server.stop(signal.SIGKILL)
    server.start()
    workbench = open_page()
    workbench.tab("Runs & export")
    workbench.page.locator("#runs-table [role=gridcell]", has_text="kept over a restart").wait_for()
    workbench.tab("Compress")
    row = workbench.locator(f".job[data-job-id='{job}'][data-state=interrupted]")
    row.wait_for()
    row.get_by_text("Start again").click()
    workbench.page.wait_for_selector(".job[data-state=running]")
    workbench.locator("#status-bar button.cancel").click()  # it would take a while
    workbench.until_idle()


def test_a_sweep_killed_half_way_goes_on_where_it_was(open_page, server):
    page = (workbench := open_page()).page
    workbench.tab("Compress")
    workbench.open("Measure perplexity")
    workbench.type_into("measure-samples", "2")
    workbench.type_into("measure-seq-len", "64")
    workbench.open("Sweep")
    for method in ("svd", "svd_llm", "a3", "modegpt"):
        page.locator("#sweep-methods input").first.click()
        page.get_by_role("option", name=method, exact=True).click()
    workbench.type_into("sweep-ratios", "0.12, 0.22, 0.32, 0.42, 0.52")
    runs = server.folder / "runs"
    before = {path.parent for path in runs.glob("*/report.json")}

    def made() -> set:
        return {path.parent for path in runs.glob("*/report.json")} - before

    workbench.click("#start-sweep")
    workbench.until(lambda: len(made()) >= 8, 120, "the sweep makes no runs")
    server.stop(signal.SIGKILL)
    kept = {path: (path / "report.json").stat().st_mtime_ns for path in made()}
    assert 8 <= len(kept) < 20
    server.start()
    workbench = open_page()
    workbench.tab("Compress")
    row = workbench.locator(".job[data-state=interrupted]", has_text="Sweep of 20 runs")
    row.wait_for()
    row.get_by_text("Start again").click()
    done = workbench.locator(".job.done", has_text="Sweep of 20 runs")
    done.wait_for()
    assert len(made()) == 20
    assert {path: (path / "report.json").stat().st_mtime_ns for path in kept} == kept
    assert done.locator("pre").text_content().count("there already") == len(kept)
    with workbench.page.expect_download() as waiting:
        done.locator("button[data-file='table.csv']").click()
    rows = list(csv.DictReader(Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()))
    assert [(row["method"], row["ratio"]) for row in rows] == [("dense", "0.0")] + [
        (method, f"0.{i}2") for method in ("svd", "svd_llm", "a3", "modegpt") for i in range(1, 6)
    ]
    assert all(float(row["perplexity"]) > 1 for row in rows)
