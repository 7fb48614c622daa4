"""What a second worker of a Ray cluster gives, on one machine with a thread for each worker."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import lrcore

from .page import empty_cache, machine, note, table, timed, write_section

REAL, SMALL = "smollm2-135m", "demo-llama"
WINDOWS = 32  # of 256 tokens, of the real model
PROBED = "a3"
METHODS, RATIOS = ("a3", "modegpt", "svd", "svd_llm"), (0.2, 0.4)
Stage = Callable[[], object]


def workers(only: list[str]) -> None:
    """Seconds of the same stages by one worker and by two. The machine should do nothing else."""
    if only:
        return
    try:
        import ray
    except ImportError:
        note("workers are left out: Ray is not installed (pip install 'ray[default]').")
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one, two = (measured(ray, count) for count in (1, 2))
    finally:
        torch.set_num_threads(threads)
    rows = [
        [name, f"{one[name]:.1f}", f"{two[name]:.1f}", f"{one[name] / two[name]:.2f}"]
        for name in one
    ]
    header = ["stage", "one worker, s", "two workers, s", "ratio"]
    write_section("workers", f"{machine()}.\n\n{table(header, rows)}")


def measured(ray, count: int) -> dict[str, float]:
    """Seconds by stage, with caches that are empty, of workers that have their models."""
    ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    seconds = {}
    try:
        with empty_cache(), tempfile.TemporaryDirectory() as folder, lrcore.on_cluster():
            for name, run in stages(Path(folder)):
                _, seconds[name] = timed(run)
                note(f"{count} workers, {name}: {seconds[name]:.1f} s")
    finally:
        ray.shutdown()
    return {name: taken for name, taken in seconds.items() if name != "start"}


def stages(folder: Path) -> list[tuple[str, Stage]]:
    """In their order: each reads what those before it have left."""
    real, small = lrcore.load(REAL), lrcore.load(SMALL)
    recipe = lrcore.Recipe(REAL, samples=WINDOWS, seq_len=256)
    own = lrcore.Recipe(SMALL, samples=64, seq_len=256, method=PROBED, policy="probed")
    tiny = recipe.with_(samples=16, seq_len=8, seed=1)
    sweep = lrcore.Sweep(own, list(METHODS), ["uniform"], list(RATIOS))
    found: dict[str, lrcore.Calibration] = {}

    def calibrate(name: str, model: lrcore.LoadedModel, by: lrcore.Recipe) -> None:
        found[name] = lrcore.calibrate(model, by)

    def start() -> None:
        """Workers start, and read both models."""
        calibrate("tiny", real, tiny)
        calibrate(SMALL, small, own)

    return [
        ("start", start),
        (f"calibration, {REAL}", lambda: calibrate(REAL, real, recipe)),
        *(
            (
                f"factorising, {method}, {REAL}",
                lambda method=method: lrcore.factorise(real, found[REAL], method),
            )
            for method in ("svd_llm", "modegpt")
        ),
        (f"probes, {PROBED}, {SMALL}", lambda: lrcore.prepare(small, own)),
        (
            f"sweep of {len(METHODS) * len(RATIOS)} cells, {SMALL}",
            lambda: lrcore.run_sweep(small, sweep, folder / "sweep"),
        ),
    ]
