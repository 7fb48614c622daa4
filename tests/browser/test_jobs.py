"""Jobs of the page: progress, reload, a second browser, cancellation, and comparison of
their runs.
"""

import csv
import json
import re
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeout

import lrcore
from workbench import words

from .page import RETRY

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True
REDRAW = """() => {
  const button = document.querySelector('#status-bar button.cancel');
  button.replaceWith(button.cloneNode(true)); }"""
BUSY = ".status-bar.running, .job.running, .job.queued"


@pytest.fixture(autouse=True)
def _idle_after(workbench):
    """Cancel the jobs of a test after it."""
    yield

    def ended() -> bool:
        button = workbench.locator("#status-bar button.cancel")
        if button.count():
            with suppress(PlaywrightTimeout):  # the job may end by itself before the click
                button.click(timeout=RETRY)
        workbench.looked()
        return not workbench.locator(BUSY).count()

    workbench.until(ended, "a job does not end")


def running(workbench):
    """Wait until a job of the test has steps, and return its status. The analysis of an opened page
    does not count.
    """

    def started(status: dict) -> bool:
        steps = status["state"] == "running" and status["total"] > 1
        return steps and not status["text"].startswith("Analyze")

    return workbench.until(
        lambda: started(status := workbench.status()) and status, "no job with steps is shown"
    )


def start_long(workbench):
    """Start a job of minutes: the whole text in windows of eight tokens."""
    workbench.start(samples=20_000, seq_len=8)


def cancel(workbench, job: str) -> None:
    """Cancel a running job in the status bar, and wait until the list of jobs shows it."""
    button = workbench.locator(f"#status-bar button.cancel[data-job='{job}']")
    row = workbench.locator(f".job[data-job-id='{job}']")
    workbench.press_until(
        lambda: button.click(timeout=RETRY),
        lambda: "cancel requested" in row.text_content(),
        "the job is not cancelled",
    )
    workbench.page.wait_for_selector(f".job[data-job-id='{job}'][data-state=cancelled]")


def make_run(workbench, name: str) -> None:
    """Compress a model on the page, and wait for the run."""

    def done() -> set[str]:
        jobs = "[...document.querySelectorAll('.job.done')].map(job => job.dataset.jobId)"
        return {*workbench.evaluate(jobs)}

    workbench.tab("Compress")
    workbench.looked()
    before = done()
    workbench.start(name)
    workbench.until(lambda: done() - before, "the run is not made")


# Whether the tab Compress has a tick.
TICKED = """() => [...document.querySelectorAll('#tabs [role=tab]')]
  .find((tab) => tab.textContent.trim() === 'Compress').hasAttribute('data-done')"""


def test_the_tab_compress_has_a_tick_when_its_job_has_ended(workbench):
    workbench.start(samples=2)  # the tick of an existing run remains while no job runs
    workbench.page.wait_for_selector(".job.done")
    workbench.until(lambda: workbench.evaluate(TICKED), "the tick does not appear")
    start_long(workbench)
    running(workbench)
    workbench.until(lambda: not workbench.evaluate(TICKED), "the tick remains while a job runs")


def test_a_running_job_shows_stage_count_and_time_left(workbench):
    workbench.open("Calibration windows")
    workbench.type_into("field-seed", "11")  # statistics that no other test leaves in the cache
    start_long(workbench)
    assert re.search(r"\d+/\d+", running(workbench)["text"])
    workbench.until(
        lambda: re.search(r"\d s elapsed · about .+ left", workbench.status()["text"]),
        "neither time is shown",
    )
    passed = workbench.locator(".job.running .stages")
    assert re.match(r"load \d+(\.\d)? s", passed.inner_text())


def test_a_reloaded_page_shows_the_same_job_with_further_progress(workbench):
    start_long(workbench)
    before = workbench.until(
        lambda: (s := workbench.status())["stage"] and s["stage"].startswith("evaluate") and s,
        "the evaluation does not start",
    )
    workbench.page.reload()
    after = workbench.until(
        lambda: (
            (s := workbench.status())["stage"]
            and (s["stage"] != before["stage"] or s["done"] > before["done"])
            and s
        ),
        "the job makes no progress",
    )
    assert after["job"] == before["job"]


def test_a_second_browser_sees_the_running_job_and_queues_behind_it(workbench, open_page):
    second_browser = open_page()
    start_long(workbench)
    job = running(workbench)["job"]
    second_browser.tab("Compress")
    second_browser.page.wait_for_selector(f".job[data-job-id='{job}'][data-state=running]")
    assert second_browser.status()["job"] != job  # the status bar shows jobs of its page only
    second_browser.start("second", samples=8)
    second_browser.page.wait_for_selector(".job[data-state=queued]")
    assert "1 before it" in second_browser.locator(".job[data-state=queued]").inner_text()
    assert "1 before it" in second_browser.until(
        lambda: (s := second_browser.status())["state"] == "queued" and s["text"],
        "the status bar does not show the queued job",
    )
    row = second_browser.locator(f".job[data-job-id='{job}']")
    row.get_by_role("button", name="Cancel").click()
    workbench.until(
        lambda: workbench.status()["state"] == "cancelled",
        "the first browser does not show that its job was cancelled",
    )


CANCEL = """() => {
  const button = document.querySelector('#status-bar button.cancel');
  button.click();
  return [button.innerText, button.disabled]; }"""


def test_cancel_shows_feedback_before_the_server_answers(workbench):
    start_long(workbench)
    job = running(workbench)["job"]
    assert workbench.evaluate(CANCEL) == [words.compress.CANCELING, True]
    workbench.page.wait_for_selector(f".job[data-job-id='{job}'][data-state=cancelled]")
    times = workbench.locator(f".job[data-job-id='{job}'] ul.stages li")
    assert re.match(r"load \d", times.first.text_content())


def test_a_finished_job_shows_its_result_and_opens_or_compares_its_run(workbench):
    make_run(workbench, "to be opened")
    row = workbench.locator(".job.done").first
    outcome = row.locator(".state").inner_text()
    number = r"\d+\.\d{4}"
    assert re.match(
        rf"a3 20% → {number} ± {number} \([+−]\d+\.\d%\), \d+(\.\d+)? MB · in \d+ s$", outcome
    )
    assert outcome in workbench.status()["text"]
    row.get_by_role("button", name="Open").click()
    heading = workbench.locator("#run-heading h3", has_text="to be opened")
    heading.wait_for()
    assert workbench.open_tab() == "Runs & export"
    workbench.page.locator("#status-bar").get_by_role("button", name="Compare").click()
    workbench.until(lambda: workbench.open_tab() == "Compare", "the run is not compared")
    workbench.locator("#compare-runs .token", has_text="to be opened").wait_for()


BOXES = """cancel => ['.toast-body', cancel].map((selector) =>
  [...document.querySelectorAll(selector)].filter((box) => box.checkVisibility()).map((box) => {
    const { left, right, top, bottom } = box.getBoundingClientRect();
    return [left, right, top, bottom]; }))"""


def test_messages_do_not_stack_or_cover_cancel_and_disappear(workbench):
    start_long(workbench)
    running(workbench)
    workbench.type_into("measure-samples", "-1")
    toasts = workbench.locator(".toast-body").locator("visible=true")
    for _ in range(3):
        workbench.click("#start")
        workbench.answered()
    toasts.first.wait_for()
    bar, cancel_buttons = "#status-bar button.cancel", "button.cancel"
    for width, selector, count in ((390, bar, 1), (1360, cancel_buttons, 2)):
        workbench.page.set_viewport_size({"width": width, "height": 900})
        workbench.answered()
        (toast,), buttons = workbench.evaluate(BOXES, selector)
        assert len(buttons) == count
        for left, right, top, bottom in buttons:
            assert toast[1] < left or toast[0] > right or toast[3] < top or toast[2] > bottom
    workbench.until(lambda: not toasts.count(), "the message does not disappear")


def test_cancel_stops_within_one_step_and_a_new_job_can_start(workbench, server):
    start_long(workbench)
    job = running(workbench)["job"]
    cancel(workbench, job)
    lines = [line for line in server.log.splitlines() if f"job {job}:" in line]
    requested = next(i for i, line in enumerate(lines) if "cancel requested" in line)
    ended = next(i for i, line in enumerate(lines) if re.search(r": canceled", line))
    steps = [line for line in lines[requested:ended] if re.search(r" \d+/\d+$", line)]
    assert len(steps) <= 1, lines[requested:]  # at most the running step
    assert ended == len(lines) - 1
    make_run(workbench, "after a cancel")


def test_cancel_works_if_the_bar_is_redrawn_between_press_and_release(workbench):
    """The status bar is redrawn every second during a job."""
    start_long(workbench)
    job = running(workbench)["job"]
    mouse, row = workbench.page.mouse, workbench.locator(f".job[data-job-id='{job}']")

    def press() -> None:
        box = workbench.locator("#status-bar button.cancel").bounding_box(timeout=RETRY)
        mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        mouse.down()
        workbench.evaluate(REDRAW)
        mouse.up()

    workbench.press_until(
        press, lambda: "cancel requested" in row.text_content(), "the press is lost"
    )


TABLE = {
    "data": "stories",
    "samples": 4,
    "seq_len": 32,
    "ratios": [0.4],
    "evaluation": {"data": "stories", "samples": 2, "seq_len": 16},
}
ENDLESS = ["compress", {"heal": {"steps": 100_000, "samples": 8, "seq_len": 16}}]


def load_table(workbench, path, rows) -> None:
    """Load a sweep file with these rows, and wait until they are shown."""
    path.write_text(json.dumps(TABLE | {"rows": rows}))
    workbench.answered()
    with workbench.page.expect_file_chooser() as waiting:
        workbench.page.click("#table-load")
    waiting.value.set_files(path)
    workbench.page.wait_for_selector(f"#table-rows summary:has-text('{path.stem}: ')")


def test_a_table_shows_its_rows_and_progress_and_gives_its_files(workbench, tmp_path):
    """Cancel in the second row, and check that a table of the first row reuses the saved run."""
    workbench.experiment("Reproduce a paper's table")
    load_table(workbench, tmp_path / "two.json", ["compress", ENDLESS])
    listed = workbench.locator("#table-rows li").all_inner_texts()
    assert len(listed) == 2
    assert "heal" in listed[1]
    workbench.click("#start-table")
    status = workbench.until(
        lambda: "row 2 of 2" in (s := workbench.status())["text"] and s,
        "the second row does not start",
    )
    assert "two: 2 rows on demo-llama" in status["text"]
    workbench.tab("Compress")
    cancel(workbench, status["job"])
    workbench.tab("Experiments")
    load_table(workbench, tmp_path / "one.json", ["compress"])
    workbench.click("#start-table")
    workbench.tab("Compress")
    row = workbench.locator(".job.done", has_text="one: 1 rows on demo-llama")
    row.wait_for()
    assert "already saved" in row.locator("pre").text_content()
    assert "row 1 of 1" in row.locator("pre").text_content()
    table = workbench.saved(row.get_by_role("button", name="CSV"))
    dense, made = csv.DictReader(table.splitlines())
    assert (dense["method"], made["method"]) == ("dense", lrcore.Recipe().method)
    assert float(made["perplexity"]) > float(dense["perplexity"])


def test_an_unknown_model_is_reported_with_a_suggestion(workbench):
    workbench.type_into("field-model", "demo-lama")
    workbench.open("Calibration windows")
    workbench.type_into("field-seed", "7")
    workbench.click("#analyse")
    words = workbench.until(
        lambda: (s := workbench.status())["state"] == "failed" and s["text"],
        "no failure is shown",
    )
    assert "demo-lama" in words
    assert "demo-llama" in words
    workbench.locator("#status-bar").get_by_role("button", name="Dismiss").click()
    workbench.until(lambda: workbench.status()["state"] == "idle", "the message does not disappear")
    assert workbench.value("field-model") == "demo-lama"
    assert workbench.value("field-seed") == "7"
    assert "Traceback" not in workbench.locator("body").inner_text()
    workbench.type_into("field-model", "demo-llama")  # the page is shared with the following tests
    workbench.type_into("field-seed", "0")


def answers(workbench) -> list[str]:
    return [workbench.answer(i) for i in range(2)]


# Clears both answers and records their lengths every 20 ms. With `stop`, presses Stop once both
# have begun: a small model writes faster than a test can look or click from outside.
RECORD = """([prompt, stop]) => {
  const columns = () => [0, 1].map(i => document.querySelector(`#answer-${i}`).dataset);
  for (const column of columns()) column.text = '';
  clearInterval(window.recorder);
  window.lengths = [];
  window.recorder = setInterval(() => {
    const [left, right] = columns().map(column => column.text.length);
    window.lengths.push([performance.now(), left, right]);
    if (stop && left > prompt.length && right > prompt.length) {
      stop = false;
      document.querySelector('#stop-generate').click();
    }
  }, 20);
}"""


def generate(workbench, prompt: str, stop: bool) -> None:
    """Generate both answers again; with `stop`, wait until Stop has ended them."""
    workbench.answered()
    workbench.evaluate(RECORD, [prompt, stop])
    workbench.page.click("#generate")
    workbench.until(
        lambda: min(map(len, answers(workbench))) > len(prompt), "the answers do not begin"
    )
    if stop:
        workbench.answered()


def growth(workbench, prompt: str, column: int) -> list[float]:
    """Return the times in ms at which the answer of a column grew."""
    seen = workbench.evaluate("window.lengths")
    return [
        time
        for (_, *before), (time, *current) in pairwise(seen)
        if current[column] > max(before[column], len(prompt))
    ]


def test_both_answers_grow_together_and_stop_ends_them(workbench):
    make_run(workbench, "to compare")
    workbench.tab("Compare")
    workbench.page.wait_for_selector("#answer-1", state="visible")
    workbench.set_range("new-tokens", 480)
    prompt = "class"  # documentation runs on for longer than a story
    workbench.type_into("prompt", prompt)

    def stopped() -> list[str] | None:
        """Return the answers that Stop left, or None if they were complete before."""
        generate(workbench, prompt, stop=True)
        texts = answers(workbench)
        workbench.looked(2)
        assert answers(workbench) == texts
        generate(workbench, prompt, stop=False)

        def longer() -> bool:
            current_texts = answers(workbench)
            return all(
                len(current_text) > len(text)
                for current_text, text in zip(current_texts, texts, strict=True)
            )

        workbench.until(
            lambda: longer() or workbench.evaluate("tests.answered()"), "an answer does not end"
        )
        return texts if longer() else None

    texts = workbench.until(stopped, "Stop has no effect")
    left, right = (growth(workbench, prompt, column) for column in (0, 1))
    assert max(left[0], right[0]) <= min(left[-1], right[-1]), (
        "the answers were written one after the other"
    )
    assert all(
        answer.startswith(text) for answer, text in zip(answers(workbench), texts, strict=True)
    )
    workbench.page.click("#stop-generate")


def test_a_saved_recipe_gives_the_same_ranks_in_a_second_browser_and_on_the_command_line(
    workbench, open_page, server, tmp_path
):
    workbench.open("Calibration windows")
    workbench.type_into("field-samples", "16")
    workbench.type_into("field-seed", "3")
    saved = workbench.recipe() | {
        "policy": "softmax",
        "temperature": 0.25,
        "budget": "kv",
        "ratio": 0.3,
        "rank_overrides": {"0.qk": 16},
    }
    assert (saved["samples"], saved["seed"]) == (16, 3)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(saved))
    second_browser = open_page()
    second_browser.open("Calibration windows")
    second_browser.open("Recipe and examples")
    second_browser.answered()
    second_browser.locator("#sidebar input[type=file]").last.set_input_files(path)
    second_browser.until(
        lambda: second_browser.value("field-seed") == "3", "the recipe is not loaded"
    )
    second_browser.answered()
    assert second_browser.recipe() == saved
    request_made = [sys.executable, "-m", "lrcore", "allocate", "--recipe", str(path), "--json"]
    output = subprocess.run(request_made, cwd=ROOT, env=server.env, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    answer = server.client().predict(saved, api_name="/allocate")
    assert [row["rank"] for row in json.loads(output.stdout)["ranks"]] == [
        row["rank"] for row in answer["ranks"]
    ]
    text_file = tmp_path / "own.txt"
    text_file.write_text("Once upon a time there was a cat. " * 600)
    second_browser.locator("#drop-text input[type=file]").set_input_files(text_file)
    second_browser.until(
        lambda: second_browser.value("field-data").endswith("/own.txt"), "the text is not chosen"
    )
    assert (
        "4\u202f096 tokens: 16 windows of 256" in second_browser.locator("#text-note").inner_text()
    )
    second_browser.type_into("field-samples", "2")
    second_browser.start("of an own text", samples=2)
    second_browser.page.wait_for_selector(".job.done:has-text('a3 30%')")
    second_browser.open_run("of an own text")
    measured = second_browser.locator("#run-heading .quality").inner_text()
    assert "own.txt:test (its last 20%, held out)" in measured
