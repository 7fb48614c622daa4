"""The page with the runs of a week: it opens like an empty one, and sends no more runs than a page
of the table has.
"""

import json
import os
import shutil
import statistics
import time
from dataclasses import dataclass, field

import pytest
from page_server import Server
from visitor import Visitor

import lrcore
from workbench.jobs import CompressJob

SHARE = float(os.environ.get("LRCORE_SOAK_SHARE", "1"))
RUNS, JOBS, TIMES = 10_000, 500, 5
PAGE = 50  # runs on a page of the table
LITTLE = 200_000  # bytes more than for an empty page


@pytest.fixture
def week(tiny_llama, story_file, tmp_path):
    """Return a folder with many runs and finished jobs, copies of a single run."""
    folder = tmp_path / "week" / "runs"
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16, ratio=0.3)
    runs = lrcore.Runs(folder)
    run = runs.write("one", recipe, lrcore.compress(lrcore.load(str(tiny_llama)), recipe))
    report = json.loads((folder / run.id / "report.json").read_text())
    for number in range(round(RUNS * SHARE)):
        copy = folder / f"{run.id}-{number}"
        copy.mkdir()
        shutil.copyfile(folder / run.id / "recipe.json", copy / "recipe.json")
        named = report | {"name": f"run {number}", "created": report["created"] - number}
        (copy / "report.json").write_text(json.dumps(named))
    assert len(runs.ids()) == round(RUNS * SHARE) + 1  # all runs are in the database
    (folder / ".jobs").mkdir()
    job = CompressJob(recipe, "its name").to_dict()
    for number in range(round(JOBS * SHARE)):
        record = {"id": f"{number:08x}", "state": "done", "created": float(number), "job": job}
        (folder / ".jobs" / f"{number:08x}.json").write_text(json.dumps(record))
    return tmp_path / "week"


@dataclass
class Measured(Visitor):
    """Visitor that counts the answers of the server; sent: bytes by endpoint."""

    sent: dict[str, int] = field(default_factory=dict)

    def _answer(self, step, event_data=None):
        answer = super()._answer(step, event_data)
        name = str(step["api_name"])
        self.sent[name] = self.sent.get(name, 0) + len(json.dumps(answer))
        return answer


def opened(folder, cache):
    """Open a page of a server of this folder; return it with its runs and the seconds for the first
    and later openings.
    """
    server = Server(folder, cache)
    try:
        began = time.perf_counter()
        page = Measured(server.url)
        seconds = [time.perf_counter() - began]
        for _ in range(TIMES):
            page.sent.clear()
            began = time.perf_counter()
            page.open()
            seconds.append(time.perf_counter() - began)
        assert "Traceback" not in server.log
        assert "no job record" not in server.log
        return page, page.runs(), seconds[0], statistics.median(seconds[1:])
    finally:
        server.stop()


@pytest.mark.soak
def test_the_page_with_ten_thousand_runs_opens_like_an_empty_one(week, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    opened(tmp_path / "empty", tmp_path / "cache")  # fill the cache
    bare, _, *quick = opened(tmp_path / "empty", tmp_path / "cache")
    full, table, *seconds = opened(week, tmp_path / "cache")
    sent = sum(bare.sent.values()), sum(full.sent.values())
    largest = sorted(full.sent, key=lambda name: bare.sent.get(name, 0) - full.sent[name])[:3]
    with capsys.disabled():
        print(f"\nseconds to open at first and then: empty {quick}, a week {seconds}; sent {sent}")
        print({name: full.sent[name] for name in largest}, bare.sent)
    assert table["html"].count("data-run=") == PAGE
    assert sent[1] < sent[0] + LITTLE
