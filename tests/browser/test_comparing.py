"""Comparison of runs: a sweep, differences of recipes, marked tokens, reports and links."""

import csv
import io
import itertools
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from .page import PATIENCE, RETRY

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True

NAMES = ("a3 30% uniform · demo-llama", "svd 30% uniform · demo-llama")
POINT = """run => {
  const p = document.querySelector('#scatter .js-plotly-plot'), l = p._fullLayout;
  p.scrollIntoView({ block: 'center', behavior: 'instant' });
  const b = p.getBoundingClientRect();
  for (const { customdata, x, y, xaxis, yaxis } of p.data)
    for (const [i, [, , id]] of (customdata || []).entries())
      if (id === run) {
        const [across, up] = [xaxis, yaxis].map((one) => l[one[0] + 'axis' + one.slice(1)]);
        return [b.x + across._offset + across.d2p(x[i]), b.y + up._offset + up.d2p(y[i])];
      }
}"""
# Number of buttons of jobs that extend beyond their job.
BEYOND = """[...document.querySelectorAll('.job')].flatMap(job =>
  [...job.querySelectorAll('button')].filter(button =>
    button.getBoundingClientRect().right > job.getBoundingClientRect().right)).length"""
SCORE = re.compile(r"\d+\.\d% ± 0\.\d{4}")
COPIED = """async () => await navigator.clipboard.readText()
  === document.querySelector('#answer-1').dataset.text"""


def test_runs_of_a_sweep_are_compared(workbench):
    page = workbench.page
    workbench.tab("Compress")
    workbench.type_into("measure-samples", "4")
    workbench.type_into("measure-seq-len", "64")
    workbench.experiment("Sweep")
    workbench.choose_all("sweep-methods", ["a3", "svd"])
    workbench.type_into("sweep-ratios", "0.3")
    workbench.click("#start-sweep")
    workbench.tab("Compress")
    workbench.until(
        lambda: page.locator(".job.done", has_text="Sweep of 2 runs").count(),
        "the sweep does not end",
    )
    size = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    workbench.until(lambda: not page.evaluate(BEYOND), "buttons of a job are cut off on a phone")
    page.set_viewport_size(size)

    workbench.press_until(
        lambda: page.locator("#guide .next").click(timeout=RETRY),
        lambda: workbench.open_tab() == "Compare",
        "the next step does not open",
    )
    workbench.tab("Compare")
    newest = page.locator("#compare-runs .token", has_text="svd 30% uniform · demo-llama")
    newest.wait_for()
    workbench.until(lambda: "runs=" in page.url, "the address does not name the chosen runs")
    workbench.until(
        lambda: "KL to dense" in page.locator("#compared").inner_text(),
        "the KL divergence is missing",
    )
    workbench.answered()
    workbench.choose_all("compare-runs", NAMES)
    table = page.locator("#recipe-differences")
    table.wait_for(state="visible")
    differences = workbench.until(
        lambda: "perplexity" in (words := table.inner_text()) and "method" in words and words,
        "the differences are missing",
    )
    assert "samples" not in differences  # equal in both
    workbench.until(
        lambda: any(t["name"] == "Pareto front" for t in workbench.plot("scatter")["traces"]),
        "no front is drawn",
    )

    workbench.open("Loss, token by token")
    workbench.click("#colour")
    workbench.until(
        lambda: page.locator("#coloured .tokens span[style*=rgba]").count() > 20,
        "no token is coloured",
    )

    workbench.open("A set of prompts")
    workbench.type_into("prompt-set", "Tom went to\nOnce upon a time")
    workbench.click("#set-go")
    workbench.until(
        lambda: "Tom went to" in page.locator("#set-table").inner_text(), "the answers are missing"
    )  # the table draws only the first rows
    summary = page.locator("#set-summary")
    assert summary.inner_text().count("answers are the same as the dense model's") == 2
    marked = summary.locator("details.marked")
    assert marked.locator("summary").all_inner_texts() == ["Tom went to", "Once upon a time"]
    assert marked.locator(".tokens").count() == 4  # one per prompt and run
    assert summary.locator(".tokens .first").count() > 0
    rows = list(csv.DictReader(io.StringIO(workbench.download("set-csv"))))
    assert [row["prompt"] for row in rows] == ["Tom went to"] * 3 + ["Once upon a time"] * 3
    assert {row["model"] for row in rows} >= {"dense"}
    assert not [name for name in rows[0] if "second" in name]


def test_prompts_are_answered_even_if_one_of_the_set_is_too_long(workbench):
    workbench.type_into("prompt-set", "Tom went to\n" + "and then " * 600)
    workbench.click("#set-go")
    workbench.answered()
    rows = list(csv.DictReader(io.StringIO(workbench.download("set-csv"))))
    short, long = rows[:3], rows[3:]
    assert all(row["answer"] and not row["error"] for row in short)
    assert all("context" in row["error"] and not row["answer"] for row in long)
    assert "Tom went to" in workbench.locator("#set-table").inner_text()
    assert workbench.locator("#set-summary").inner_text().count(" of 1 answers are the same") == 2


def test_saved_comparison_files_contain_both_runs(workbench):
    for form, begin in (("CSV", "metric,"), ("Markdown", "|  | dense"), ("LaTeX", "% ")):
        button = workbench.locator(f"#compared button[data-form={form}]")
        saved = workbench.saved(button)
        assert saved.startswith(begin)
        assert all(name.split()[0] in saved for name in NAMES)
    assert saved.count("\\textbf{") > 1


@pytest.mark.soak
def test_losses_and_task_scores_are_measured_for_compared_runs(workbench):
    compared = workbench.locator("#compared")
    assert "Local error of mlp" not in compared.inner_text()
    workbench.click("#measure-details")
    for row in ("Accuracy on story endings", "Loss from mlp alone", "Local error of mlp"):
        workbench.until(lambda row=row: row in compared.inner_text(), f"no {row}")
    cells = compared.locator("tr", has_text="Accuracy on story endings").locator("td")

    def scored() -> bool:
        """Return True if the dense model and both runs have a score with a standard error."""
        return [*map(SCORE.match, cells.all_inner_texts())].count(None) == 0 and cells.count() == 3

    workbench.until(scored, "a run has no score")


def titles(workbench) -> list[str]:
    """Return the titles above the answers of the dense model and of the two runs."""
    return [workbench.locator(f"#answer-{i}").get_attribute("aria-label") for i in range(3)]


def test_answers_can_be_copied_and_their_titles_show_no_unmeasured_speed(workbench):
    page = workbench.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    workbench.set_range("new-tokens", 24)
    workbench.type_into("prompt", "Once upon a time")
    workbench.until(lambda: {*titles(workbench)[1:]} == {*NAMES}, "the columns are missing")
    workbench.click("#generate")
    workbench.answered()  # the answers are complete
    workbench.until(
        lambda: page.locator("#answers .tokens").count() == 3, "the answers are not marked by token"
    )
    assert page.locator("#answers .scale").count() == 1
    assert page.locator("#answers .tokens .first").count() >= 2  # of the dense model and of a run
    assert titles(workbench)[0] == "dense · demo-llama"
    assert {*titles(workbench)[1:]} == {*NAMES}
    copy = page.locator("#answer-1 button[aria-label*=opy]").first

    def copied() -> bool:
        copy.click()
        return page.evaluate(COPIED)

    workbench.until(copied, "the copy is not the answer")


@pytest.mark.soak
def test_measured_speed_is_an_axis_of_the_chart_and_part_of_the_titles(workbench):
    page = workbench.page
    caption = page.locator("#scatter-caption")
    workbench.choose("axis", "decode time per token (ms)")
    workbench.until(
        lambda: "Measure their speed" in caption.inner_text(),
        "the missing measurement is not named",
    )
    workbench.click("#measure-speed")
    workbench.until(
        lambda: "Decode speed" in page.locator("#compared").inner_text(),
        "no speed is shown",
    )
    workbench.until(
        lambda: (
            {"dense", "a3 · uniform", "svd · uniform", "Pareto front"}
            <= {trace["name"] for trace in workbench.plot("scatter")["traces"]}
        ),
        "the Pareto front over time is missing",
    )
    workbench.answered()
    assert "alternating with the dense model" in caption.inner_text()
    assert "Left out" not in caption.inner_text()
    workbench.until(
        lambda: all("tokens/s" in title for title in titles(workbench)),
        "a measured speed is missing above its column",
    )


def test_a_click_on_a_point_removes_its_run_and_a_second_click_adds_it(workbench, server):
    page = workbench.page
    workbench.choose("axis", "size (MB)")
    ids = {run["name"]: run["id"] for run in server.client().predict(api_name="/runs")}
    tokens = page.locator("#compare-runs .token")

    def compared() -> set[str]:
        return {token.strip() for token in tokens.all_inner_texts()}

    for expected in ({NAMES[0]}, {*NAMES}):
        workbench.settled()
        workbench.press_until(
            lambda: page.mouse.click(*workbench.evaluate(POINT, ids[NAMES[1]])),
            lambda wanted=expected: compared() == wanted,
            f"{expected} are not chosen",
        )
    workbench.settled()
    saved = workbench.saved(page.locator("#scatter-caption button[data-form=CSV]"))
    rows = {row["run"]: row for row in csv.DictReader(io.StringIO(saved))}
    assert {*rows} == {"dense", *NAMES}
    assert all(float(rows[name]["standard error"]) > 0 for name in NAMES)
    assert any(rows[name]["not dominated"] == "1" for name in NAMES)
    for form, begin in (("Markdown", "demo-llama, stories"), ("LaTeX", "% demo-llama, stories")):
        button = page.locator(f"#scatter-caption button[data-form={form}]")
        assert workbench.saved(button).startswith(begin)


def table_of(workbench, title: str, file: str) -> str:
    """Return a file of a finished sweep, downloaded from the list of jobs."""
    job = workbench.locator(".job.done", has_text=title)
    return workbench.saved(job.locator(f"button[data-file='{file}']").first)


def test_a_cross_calibration_study_measures_all_pairs_and_writes_its_tables(workbench):
    page = workbench.page
    workbench.experiment("Sweep")
    workbench.type_into("sweep-sets", "stories")
    page.locator("#sweep-cross input").check()
    workbench.click("#start-sweep")
    page.get_by_text("needs at least two data sets").wait_for()
    workbench.type_into("sweep-sets", "stories, python-docs")
    workbench.click("#start-sweep")
    workbench.tab("Compress")
    workbench.until(
        lambda: page.locator(".job.done", has_text="Sweep of 4 runs").count(),
        "the study does not end",
    )
    rows = list(csv.DictReader(io.StringIO(table_of(workbench, "Sweep of 4 runs", "table.csv"))))
    pairs = {
        (row["method"], row["calibrated_on"], row["measured_on"])
        for row in rows
        if row["method"] != "dense"
    }
    assert pairs == set(
        itertools.product(("a3", "svd"), ("stories", "python-docs"), ("stories", "python-docs"))
    )
    assert all(float(row["perplexity"]) > 1 for row in rows)
    report = table_of(workbench, "Sweep of 4 runs", "report.html")
    assert "Calibrated on (down), measured on (across)" in report
    assert "://" not in report
    log = page.locator(".job.done", has_text="Sweep of 4 runs").locator("pre").text_content()
    assert log.count("already saved") == 2  # the runs of the previous sweep, calibrated on stories


def test_reports_open_offline_and_request_no_host(workbench, tmp_path):
    sweep, run = tmp_path / "sweep.html", tmp_path / "run.html"
    sweep.write_text(table_of(workbench, "Sweep of 4 runs", "report.html"), encoding="utf-8")
    workbench.open_run("svd 30% uniform · demo-llama")
    run.write_text(workbench.download("run-report"), encoding="utf-8")
    context, requested = workbench.page.context.browser.new_context(offline=True), []
    context.set_default_timeout(PATIENCE * 1000)
    context.on("request", lambda request: requested.append(request.url))
    page = context.new_page()
    for path in (sweep, run):
        page.goto(path.as_uri())
        assert page.locator("table").count() > 1
    assert requested == [sweep.as_uri(), run.as_uri()]
    page.goto(sweep.as_uri())
    assert page.locator("svg circle").count() > 10
    context.close()


def test_runs_of_a_second_model_have_a_separate_dense_card_and_chart_panel(workbench, server):
    client, page = server.client(), workbench.page
    recipe = {"model": "demo-opt", "method": "svd", "samples": 4, "seq_len": 32, "ratio": 0.3}
    run = client.predict(recipe, "of another", api_name="/compress")
    client.predict(run, "stories", 4, 64, api_name="/evaluate")
    workbench.tab("Compare")
    workbench.answered()
    workbench.choose_all("compare-runs", [NAMES[0], "of another"])
    tables = page.locator("#compared table")
    workbench.until(lambda: tables.count() == 2, "both models are in one table")
    heads = [table.locator("thead th").all_inner_texts() for table in tables.all()]
    runs_by_dense = {dense: {*runs} for _, dense, *runs in heads}
    assert runs_by_dense["dense · demo-opt"] == {"of another"}
    assert NAMES[0] in runs_by_dense["dense · demo-llama"] <= {*NAMES}
    workbench.until(
        lambda: "demo-opt, measured on" in page.locator("#scatter .plot-head span").inner_text(),
        "the caption of the chart lacks the other model",
    )
    assert "calibrated on stories, seed 0" in page.locator("#scatter .plot-head").inner_text()


def test_the_table_of_runs_remembers_sorting_filter_and_ticks(workbench):
    page, table = workbench.page, workbench.locator("#runs-table")
    rows, boxes = table.locator("tbody tr"), table.locator("tbody [type=checkbox]")

    def heads() -> list[str]:
        return [head.strip() for head in table.locator("thead th").all_inner_texts()]

    workbench.tab("Runs & export")
    table.locator("[data-sort=perplexity]").click()
    table.locator("[type=search]").fill("python-docs")
    workbench.until(lambda: rows.count() == 2, "the search does not filter the runs")
    table.locator("summary").click()
    table.locator("[data-column=policy]").uncheck()
    workbench.until(lambda: "Policy" not in heads(), "the column stays")
    workbench.answered()
    for i in range(2):  # without a pause
        boxes.nth(i).set_checked(False)
    workbench.answered()
    for i in range(2):
        boxes.nth(i).check()
    ids = [rows.nth(i).get_attribute("data-run") for i in range(2)]

    def addressed() -> bool:
        (runs,) = parse_qs(urlsplit(page.url).query).get("runs", [""])
        return {*ids} <= {*runs.split(",")}

    workbench.until(addressed, "the address lacks a selected run")
    page.reload()
    workbench.tab("Runs & export")
    workbench.until(lambda: rows.count() == 2, "the search text is lost")
    assert "Policy" not in heads()
    assert "Method" in heads()
    assert [rows.nth(i).get_attribute("data-run") for i in range(2)] == ids
    assert table.locator("[aria-sort=ascending]").inner_text() == "Perplexity"
    workbench.until(
        lambda: boxes.nth(0).is_checked() and boxes.nth(1).is_checked(), "the selection is lost"
    )
    workbench.answered()
    table.locator(".compare").click()
    workbench.until(lambda: workbench.open_tab() == "Compare", "the runs are not compared")


def test_a_link_with_a_plan_and_runs_opens_both(workbench, open_page, server):
    ids = {run["name"]: run["id"] for run in server.client().predict(api_name="/runs")}
    run_names = [*NAMES, "of another"]
    runs = ",".join(ids[name] for name in run_names)
    query = f"?method=svd&policy=energy&ratio=0.35&runs={runs}&tab=Compare"
    linked = open_page(query, ready=False)
    linked.until(lambda: linked.open_tab() == "Compare", "the tab is not open")
    tokens = linked.locator("#compare-runs .token")
    linked.until(
        lambda: [token.strip() for token in tokens.all_inner_texts()] == run_names,
        "other runs are chosen",
    )
    linked.allocation()
    linked.shows_ratio(0.35)
    assert linked.value("field-method") == "svd"
    assert linked.value("field-policy") == "energy"
    toasts = linked.locator(".toast-body").all_inner_texts()
    assert not [toast for toast in toasts if "Error" in toast]
