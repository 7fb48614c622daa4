"""The page with the runs of a week: it opens with what an empty one does, and sends no more of the
runs than one page of the table.
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
PAGE = 50  # runs in a page of the table
LITTLE = 200_000  # bytes more than an empty page is sent


@pytest.fixture
def week(tiny_llama, story_file, tmp_path):
    """A folder with so many runs and ended jobs, made of one real run each."""
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
    assert len(runs.ids()) == round(RUNS * SHARE) + 1  # all are in the database
    (folder / ".jobs").mkdir()
    job = CompressJob(recipe, "its name").to_dict()
    for number in range(round(JOBS * SHARE)):
        record = {"id": f"{number:08x}", "state": "done", "created": float(number), "job": job}
        (folder / ".jobs" / f"{number:08x}.json").write_text(json.dumps(record))
    return tmp_path / "week"


@dataclass
class Measured(Visitor):
    """A visitor who counts what the server answers; sent: its bytes by endpoint."""

    sent: dict[str, int] = field(default_factory=dict)

    def _answer(self, step, event_data=None):
        answer = super()._answer(step, event_data)
        name = str(step["api_name"])
        self.sent[name] = self.sent.get(name, 0) + len(json.dumps(answer))
        return answer


def opened(folder, cache):
    """A page of a server of this folder, and the seconds that it takes to open: at first, and
    then.
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
def test_ten_thousand_runs_and_five_hundred_jobs(week, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    opened(tmp_path / "empty", tmp_path / "cache")  # what the page computes once is in the cache
    bare, _, *quick = opened(tmp_path / "empty", tmp_path / "cache")
    full, table, *seconds = opened(week, tmp_path / "cache")
    sent = sum(bare.sent.values()), sum(full.sent.values())
    largest = sorted(full.sent, key=lambda name: bare.sent.get(name, 0) - full.sent[name])[:3]
    with capsys.disabled():
        print(f"\nseconds to open at first and then: empty {quick}, a week {seconds}; sent {sent}")
        print({name: full.sent[name] for name in largest}, bare.sent)
    assert table["html"].count("data-run=") == PAGE
    assert sent[1] < sent[0] + LITTLE
