"""Two servers with the same folder of runs."""

import os
import signal
import sys
import time
from pathlib import Path

import fresh
import pytest

import lrcore
from workbench.jobs import KINDS, CompressJob
from workbench.state.job_queue import SERVERS, JobQueue

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks of files")
PATIENCE = 60  # seconds
OTHER_SERVER = """
import sys, time
from pathlib import Path
import lrcore
from workbench.state.job_queue import JobQueue
from workbench.jobs import KINDS, CompressJob

def work(record):
    Path(sys.argv[2]).touch()
    time.sleep(600)

JobQueue(Path(sys.argv[1]), KINDS, work).submit(CompressJob(lrcore.Recipe()))
time.sleep(600)
"""


@pytest.fixture
def other_server(tmp_path):
    """Start a server in a second process, and wait until its job runs."""
    script, begun = tmp_path / "other.py", tmp_path / "begun"
    script.write_text(OTHER_SERVER)
    process = fresh.page().start(
        [str(script), str(tmp_path / "jobs"), str(begun)], dict(os.environ), tmp_path
    )
    wait_for(begun.exists)
    wait_for(lambda: [*(tmp_path / "jobs").glob("*.json")])
    yield process
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)


def wait_for(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def open_queue(folder: Path) -> JobQueue:
    return JobQueue(folder, KINDS, lambda record: [])


def test_a_running_job_of_a_second_server_is_not_marked_as_interrupted(other_server, tmp_path):
    record = next((tmp_path / "jobs").glob("*.json"))
    wait_for(lambda: '"running"' in record.read_text())
    before = record.read_text()
    assert open_queue(tmp_path / "jobs").all() == []
    assert record.read_text() == before
    other_server.send_signal(signal.SIGKILL)
    other_server.wait(PATIENCE)
    records = open_queue(tmp_path / "jobs").all()
    assert [listed.state for listed in records] == ["interrupted"]
    assert records[0].job == CompressJob(lrcore.Recipe())


def test_finished_jobs_of_a_second_server_are_listed(other_server, tmp_path):
    queue = open_queue(tmp_path / "jobs")
    done = queue.submit(CompressJob(lrcore.Recipe(ratio=0.3)))
    wait_for(lambda: queue.get(done.id).state == "done")
    assert [listed.state for listed in open_queue(tmp_path / "jobs").all()] == ["done"]


def test_the_lock_of_a_killed_server_is_removed(other_server, tmp_path):
    servers = tmp_path / "jobs" / SERVERS
    assert len([*servers.glob("*.lock")]) == 1
    other_server.send_signal(signal.SIGKILL)
    other_server.wait(PATIENCE)
    queue = open_queue(tmp_path / "jobs")
    queue.submit(CompressJob(lrcore.Recipe()))
    assert [lock.stem for lock in servers.glob("*.lock")] == [queue._server()]
