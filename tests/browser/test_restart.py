"""The server is killed in the middle of a job and started again."""

import signal

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_runs_stay_and_an_interrupted_job_is_offered_again(open_page, server):
    workbench = open_page()
    workbench.start("kept over a restart")
    workbench.page.wait_for_selector(".job.done", timeout=90_000)
    workbench.start("interrupted", samples=800)
    job = workbench.until(lambda: (s := workbench.strip())["state"] == "running" and s["total"] > 1 and s["job"], 60, "no job runs")
    server.stop(signal.SIGKILL)
    server.start()
    workbench = open_page()
    workbench.tab("Runs & export")
    workbench.page.locator("#runs-table [role=gridcell]", has_text="kept over a restart").wait_for()
    workbench.tab("Compress")
    row = workbench.locator(f".job[data-job-id='{job}'][data-state=interrupted]")
    row.wait_for()
    row.get_by_text("Start again").click()
    workbench.page.wait_for_selector(".job[data-state=running]", timeout=20_000)
