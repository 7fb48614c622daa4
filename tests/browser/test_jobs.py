"""Jobs: progress, reload, a second browser, cancel; and comparing what they made."""

import json
import re
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from gradio_client import Client
from playwright.sync_api import TimeoutError as PlaywrightTimeout

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True


@pytest.fixture(autouse=True)
def quiet_after(workbench):
    """The next test finds an idle server."""
    yield
    for _ in range(5):
        button = workbench.locator("#status-bar button.cancel")
        if not button.count():
            break
        with suppress(PlaywrightTimeout):  # the job may end by itself before the click
            button.click(timeout=2000)
        workbench.page.wait_for_timeout(1500)
    workbench.until_idle()


def running(workbench, seconds=10):
    return workbench.until(
        lambda: (s := workbench.status())["state"] == "running" and s["total"] > 1 and s,
        seconds,
        "no job with steps is shown",
    )


def start_long(workbench):
    """A job that a test cancels: the whole text in windows of eight tokens takes minutes."""
    workbench.start(samples=20_000, seq_len=8)


def test_start_shows_stage_count_and_time_left(workbench):
    workbench.open("Calibration text")
    workbench.type_into("field-seed", "11")  # statistics that no other test has left on disk
    workbench.start(samples=64)
    seen = running(workbench, 2)
    assert re.search(r"\d+/\d+", seen["text"])
    workbench.until(
        lambda: re.search(r"about .+ left", workbench.status()["text"]), 30, "no time left is shown"
    )
    workbench.until_idle()


def test_a_reload_finds_the_same_job_further_on(workbench):
    start_long(workbench)
    before = workbench.until(
        lambda: (s := workbench.status())["stage"] and s["stage"].startswith("evaluate") and s,
        60,
        "no evaluation",
    )
    workbench.page.reload()
    workbench.page.wait_for_selector("#status-bar .status-bar.running")
    after = workbench.until(
        lambda: (
            (s := workbench.status())["stage"]
            and (s["stage"] != before["stage"] or s["done"] > before["done"])
            and s
        ),
        3,
        "no further step",
    )
    assert after["job"] == before["job"]


def test_a_second_browser_sees_the_job_and_queues_behind_it(workbench, open_page):
    other = open_page()
    start_long(workbench)
    job = running(workbench, 60)["job"]
    other.until(lambda: other.status()["job"] == job, 10, "the other browser does not see the job")
    other.start("second", samples=8)
    other.page.wait_for_selector(".job[data-state=queued]")
    assert "1 before it" in other.locator(".job[data-state=queued]").inner_text()
    other.locator("#status-bar button.cancel").click()
    other.page.wait_for_selector(f".job[data-job-id='{job}'][data-state=cancelled]")
    workbench.until(
        lambda: workbench.status()["job"] != job,
        20,
        "the first browser still shows the cancelled job",
    )


def test_cancel_stops_within_one_step_and_a_new_job_can_start(workbench, server):
    start_long(workbench)
    job = running(workbench, 60)["job"]
    workbench.locator("#status-bar button.cancel").click()
    workbench.page.wait_for_selector(f".job[data-job-id='{job}'][data-state=cancelled]")
    lines = [line for line in server.log.splitlines() if f"job {job}:" in line]
    requested = next(i for i, line in enumerate(lines) if "cancel requested" in line)
    ended = next(i for i, line in enumerate(lines) if re.search(r": cancelled", line))
    steps = [line for line in lines[requested:ended] if re.search(r" \d+/\d+$", line)]
    assert len(steps) <= 1, lines[requested:]  # at most the step that was under way
    assert ended == len(lines) - 1
    workbench.start("after a cancel")
    workbench.page.wait_for_selector(".job.done >> text=a3")


def test_a_wrong_model_is_named_with_a_remedy(workbench):
    workbench.type_into("field-model", "demo-lama")
    workbench.open("Calibration text")
    workbench.type_into("field-seed", "7")
    workbench.click("#analyse")
    words = workbench.until(
        lambda: (s := workbench.status())["state"] == "failed" and s["text"],
        60,
        "no failure is shown",
    )
    assert "demo-lama" in words
    assert "demo-llama" in words
    assert workbench.value("field-model") == "demo-lama"
    assert workbench.value("field-seed") == "7"
    assert "Traceback" not in workbench.locator("body").inner_text()
    workbench.type_into("field-model", "demo-llama")  # the tests below go on with this page
    workbench.type_into("field-seed", "0")


def answers(workbench):
    return [workbench.locator(f"#answer-{i} textarea").input_value() for i in (0, 1)]


# Notes the length of both answers every 20 ms, and presses Stop once both have begun: a small model
# writes faster than a test can look, or click, from outside.
RECORD = """() => {
  const length = i => document.querySelector('#answer-' + i + ' textarea').value.length;
  window.lengths = [];
  clearInterval(window.recorder);
  window.recorder = setInterval(() => {
    window.lengths.push([performance.now(), length(0), length(1)]);
    if (!window.stopped && length(0) > 30 && length(1) > 30) {
      window.stopped = true;
      document.querySelector('#stop-generate').click();
    }
  }, 20);
}"""


def growth(workbench, column: int) -> list[float]:
    """The times, in ms, at which one answer became longer."""
    seen = workbench.evaluate("() => window.lengths")
    return [now[0] for before, now in pairwise(seen) if now[column + 1] > before[column + 1]]


def test_both_answers_grow_together_and_stop_freezes_them(workbench):
    workbench.start("to compare")
    workbench.page.wait_for_selector(".job.done")
    workbench.tab("Compare")
    workbench.page.wait_for_selector("#answer-1", state="visible")
    workbench.set_range("new-tokens", 480)
    workbench.type_into("prompt", "class")  # documentation goes on for longer than a story does
    workbench.evaluate(RECORD)
    workbench.click("#generate")
    workbench.until(
        lambda: workbench.evaluate("() => window.stopped"), 30, "the answers do not start"
    )
    workbench.page.wait_for_timeout(500)
    stopped = answers(workbench)
    left, right = growth(workbench, 0), growth(workbench, 1)
    assert max(left[0], right[0]) < min(left[-1], right[-1]), "one was written after the other"
    workbench.page.wait_for_timeout(1500)
    assert answers(workbench) == stopped
    workbench.click("#generate")  # what they would have become without Stop
    workbench.until(
        lambda: sum(map(len, answers(workbench))) > sum(map(len, stopped)) + 40,
        30,
        "Stop came after the end",
    )


def test_a_saved_recipe_fills_another_browser_and_gives_the_command_line_the_same_ranks(
    workbench, open_page, server, tmp_path
):
    workbench.open("Calibration text")
    workbench.type_into("field-samples", "16")
    workbench.type_into("field-seed", "3")
    saved = workbench.recipe() | {
        "policy": "softmax",
        "temperature": 0.25,
        "budget": "kv",
        "ratio": 0.3,
        "overrides": {"0.qk": 16},
    }
    assert (saved["samples"], saved["seed"]) == (16, 3)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(saved))
    other = open_page()
    other.open("Calibration text")
    other.open("Recipe and examples")
    other.locator("#sidebar input[type=file]").first.set_input_files(path)
    other.until(lambda: other.value("field-seed") == "3", 20, "the recipe is not loaded")
    assert other.recipe() == saved
    request_made = [sys.executable, "-m", "lrcore", "allocate", "--recipe", str(path), "--json"]
    output = subprocess.run(request_made, cwd=ROOT, env=server.env, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    answer = Client(server.url, verbose=False).predict(saved, api_name="/allocate")
    assert [row["rank"] for row in json.loads(output.stdout)["ranks"]] == [
        row["rank"] for row in answer["ranks"]
    ]
