"""Several runs side by side: a sweep that makes them, only their differences, tokens coloured, a
set of prompts, tags.
"""

import csv
import io
import itertools
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True

COPIED = """async () => await navigator.clipboard.readText()
  === document.querySelector('#answer-1 textarea').value"""


def choose_both(page) -> bool:
    """Whether both runs are chosen; chooses one that is not.

    The newest when the page first looked is chosen already.
    """
    chosen = page.locator("#compare-runs").inner_text()
    lacking = [name for name in ("a3 30% uniform", "svd 30% uniform") if name not in chosen]
    if lacking:
        page.locator("#compare-runs input").first.click()
        page.get_by_role("option", name=lacking[0]).first.dispatch_event("mousedown")
        page.locator("#compare-runs input").first.blur()
        page.wait_for_timeout(500)
    return not lacking


def test_a_sweep_is_compared(workbench):
    page = workbench.page
    workbench.tab("Compress")
    workbench.open("Measure perplexity")
    workbench.type_into("measure-samples", "4")
    workbench.type_into("measure-seq-len", "64")
    workbench.open("Sweep")
    for method in ("a3", "svd"):
        page.locator("#sweep-methods input").first.click()
        page.get_by_role("option", name=method, exact=True).click()
    workbench.type_into("sweep-ratios", "0.3")
    workbench.click("#start-sweep")
    workbench.until(
        lambda: page.locator(".job.done", has_text="Sweep of 2 runs").count(),
        120,
        "the sweep does not end",
    )

    workbench.tab("Compare")
    workbench.until(
        lambda: "KL to dense" in page.locator("#cards").inner_text(),
        20,
        "no distance to the dense model is shown",
    )
    workbench.until(lambda: choose_both(page), 30, "the two runs cannot be chosen")
    table = page.locator("#recipe-differences")
    table.wait_for(state="visible")
    workbench.until(
        lambda: "method" in table.inner_text() and "perplexity" in table.inner_text(),
        20,
        "no differences are shown",
    )
    assert "samples" not in table.inner_text()  # equal in both
    workbench.until(
        lambda: any(t["name"] == "best so far" for t in workbench.plot("scatter")["traces"]),
        20,
        "no front is drawn",
    )

    workbench.open("Loss, token by token")
    workbench.click("#colour")
    workbench.until(
        lambda: page.locator("#coloured .tokens span[style*=rgba]").count() > 20,
        30,
        "no token is coloured",
    )

    workbench.open("A set of prompts")
    page.wait_for_timeout(1000)  # what is typed while the box is being built is lost
    workbench.type_into("prompt-set", "Tom went to\nOnce upon a time")
    workbench.click("#set-go")
    workbench.until(
        lambda: "Tom went to" in page.locator("#set-table").inner_text(), 60, "no answers come"
    )  # rows far down are not drawn
    rows = list(csv.DictReader(io.StringIO(workbench.download("set-csv"))))
    assert [row["prompt"] for row in rows] == ["Tom went to"] * 3 + ["Once upon a time"] * 3
    assert {row["model"] for row in rows} >= {"dense"}


def test_every_column_says_its_own_speed_and_can_be_copied(workbench):
    page = workbench.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    workbench.set_range("new-tokens", 24)
    workbench.type_into("prompt", "Once upon a time")
    labels = [page.locator(f"#answer-{i} label > span").first for i in range(3)]
    runs = {"a3 30% uniform", "svd 30% uniform"}
    workbench.until(
        lambda: {label.inner_text() for label in labels[1:]} == runs,
        10,
        "the columns are not laid out",
    )
    workbench.click("#generate")
    workbench.until(
        lambda: all("tokens/s" in label.inner_text() for label in labels),
        60,
        "a column does not say its speed",
    )
    words = [label.inner_text() for label in labels]
    assert words[0].startswith("dense · demo-llama · ")
    assert {name.rpartition(" · ")[0] for name in words[1:]} == runs
    assert all(
        float(word.rpartition(" · ")[2].removesuffix(" tokens/s").replace(",", "")) > 0
        for word in words
    )
    copy = page.locator("#answer-1 button[aria-label*=opy]").first

    def copied() -> bool:
        copy.click()
        return page.evaluate(COPIED)

    # until the answer is whole, it may grow between the click and the look
    workbench.until(copied, 30, "the copy is not the answer")


def test_measured_speed_is_an_axis(workbench):
    page = workbench.page
    page.locator("#axis input").first.click()
    page.get_by_role("option", name="decode time").first.dispatch_event("mousedown")
    page.locator("#axis input").first.blur()
    workbench.until(
        lambda: "Measure their speed" in page.locator("#scatter-caption").inner_text(),
        20,
        "what is lacking is not said",
    )
    workbench.click("#measure-speed")
    workbench.until(
        lambda: page.locator("#cards").inner_text().count("decode speed") == 2,
        60,
        "the cards show no speed",
    )
    workbench.until(
        lambda: len(workbench.plot("scatter")["traces"]) == 4, 20, "no front over time is drawn"
    )  # dense, two methods, front
    assert "Measure their speed" not in page.locator("#scatter-caption").inner_text()


def table_of(page, title: str, file: str) -> str:
    """A file of a finished sweep, as its button in the list of jobs gives it."""
    with page.expect_download() as waiting:
        page.locator(".job.done", has_text=title).locator(
            f"button[data-file='{file}']"
        ).first.click()
    return Path(waiting.value.path()).read_text(encoding="utf-8")


def test_a_cross_calibration_study_measures_all_pairs_and_gives_its_tables(workbench):
    page = workbench.page
    workbench.tab("Compress")
    workbench.open("Sweep")
    workbench.type_into("sweep-sets", "stories")
    page.locator("#sweep-cross input").check()
    workbench.click("#start-sweep")
    page.get_by_text("needs at least two data sets").wait_for()
    workbench.type_into("sweep-sets", "stories, python-docs")
    workbench.click("#start-sweep")
    workbench.until(
        lambda: page.locator(".job.done", has_text="Sweep of 4 runs").count(),
        180,
        "the study does not end",
    )
    rows = list(csv.DictReader(io.StringIO(table_of(page, "Sweep of 4 runs", "table.csv"))))
    pairs = {
        (row["method"], row["calibrated_on"], row["measured_on"])
        for row in rows
        if row["method"] != "dense"
    }
    assert pairs == set(
        itertools.product(("a3", "svd"), ("stories", "python-docs"), ("stories", "python-docs"))
    )
    assert all(float(row["perplexity"]) > 1 for row in rows)
    report = table_of(page, "Sweep of 4 runs", "report.html")
    assert "Calibrated on (down), measured on (across)" in report
    assert "http" not in report
    log = page.locator(".job.done", has_text="Sweep of 4 runs").locator("pre").text_content()
    assert log.count("there already") == 2  # the runs of the sweep before, calibrated on stories


def test_reports_open_offline_and_ask_no_host_for_anything(workbench, tmp_path):
    sweep, run = tmp_path / "sweep.html", tmp_path / "run.html"
    sweep.write_text(table_of(workbench.page, "Sweep of 4 runs", "report.html"), encoding="utf-8")
    workbench.tab("Runs & export")
    workbench.page.locator("#runs-table [role=gridcell]", has_text="svd 30% uniform").first.click()
    workbench.page.locator("#run-report").wait_for(state="visible")
    run.write_text(workbench.download("run-report"), encoding="utf-8")
    context, requested = workbench.page.context.browser.new_context(offline=True), []
    context.on("request", lambda request: requested.append(request.url))
    page = context.new_page()
    for path in (sweep, run):
        page.goto(path.as_uri())
        assert page.locator("table").count() > 1
    assert requested == [sweep.as_uri(), run.as_uri()]
    page.goto(sweep.as_uri())
    assert page.locator("svg circle").count() > 10
    context.close()
