"""Ray workers on this machine, tested by `make cluster`."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import lrcore
from lrcore.compression.evidence.probes import measure_divergences
from lrcore.runs.cluster.ray_engine import on_cluster
from lrcore.system.errors import Cancelled

pytestmark = pytest.mark.cluster

PATIENCE = 180  # seconds until killed workers have ended, some of which may still be starting


@pytest.fixture(scope="module")
def two_workers():
    """Start a cluster of two CPUs with a thread per worker."""
    ray = pytest.importorskip("ray")
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    torch.set_num_threads(threads)


def silent(*_):
    pass


def worker_processes() -> list[int]:
    """Return the ids of Ray worker processes with the actor of this project."""
    processes = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                title = (folder / "cmdline").read_bytes().split(b"\0")[0]
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            except (OSError, IndexError):
                continue
            if title.startswith(b"ray::RayWorker") and descends(int(parent)):
                processes.append(int(folder.name))
    return processes


def descends(pid: int) -> bool:
    """Return whether this process is an ancestor of a process."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


@pytest.mark.usefixtures("two_workers")
def test_a_killed_worker_does_not_change_the_table(tiny_llama, story_file, tmp_path) -> None:
    base = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32)
    sweep = lrcore.Sweep(
        base,
        ["a3", "svd", "svd_llm", "modegpt"],
        ["uniform", "probed"],
        [0.1, 0.2, 0.3, 0.4],
        evaluations=(lrcore.EvaluationSettings(base.data, 2, 16),),
    )
    model, cells = lrcore.load(str(tiny_llama)), tmp_path / "there" / "cells"
    local_rows = lrcore.run_sweep(model, sweep, tmp_path / "here")
    killed, stored = [], {}

    def kill() -> None:
        while len(list(cells.glob("*.json"))) < 4:
            time.sleep(0.01)
        stored.update({path: path.stat().st_mtime_ns for path in cells.glob("*.json")})
        killed.append(worker_processes()[0])
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    with on_cluster():
        cluster_rows = lrcore.run_sweep(model, sweep, tmp_path / "there")
    thread.join(60)
    assert killed
    assert [row.to_dict() for row in cluster_rows] == [row.to_dict() for row in local_rows]
    assert {path: path.stat().st_mtime_ns for path in stored} == stored
    assert all(json.loads(path.read_text())["rows"] for path in cells.iterdir())


@pytest.mark.usefixtures("two_workers")
def test_canceled_work_ends_its_workers(tiny_llama, story_file) -> None:
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=6, seq_len=32)
    model = lrcore.load(str(tiny_llama))
    factors = lrcore.factorize(model, lrcore.calibrate(model, recipe), "svd")
    tokens = factors.calibration.tokens

    def stop(stage, done, total) -> None:
        if done:
            raise Cancelled

    with on_cluster():
        with pytest.raises(Cancelled):
            measure_divergences(model, factors, tokens, stop)
        began = time.monotonic()
        while worker_processes() and time.monotonic() - began < PATIENCE:
            time.sleep(0.05)
        assert not worker_processes()
        local = measure_divergences(model, factors, tokens, silent)
    assert measure_divergences(model, factors, tokens, silent) == local
