"""Speedup by a second worker of a Ray cluster, on one machine with a thread per worker."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import lrcore
from lrcore.compression.calibration.calibrate import Calibration
from lrcore.compression.solve.factorize import Factorization
from lrcore.runs.cluster.ray_engine import on_cluster

from .machine import machine
from .report import log, table, write_section
from .timing import empty_cache, timed

MODEL = "smollm2-135m"
WINDOWS, LENGTH = 32, 512  # of calibration
PROBED, PROBES = "svd_llm", "demo-llama"  # probes of MODEL take over 15 minutes
METHODS, RATIOS = ("a3", "modegpt", "svd", "svd_llm"), (0.2, 0.4)  # of the sweep
FACTORIZED = ("svd_llm", "modegpt")
Stage = Callable[[], object]


def workers(models: list[str]) -> None:
    """Time the same stages with one worker and with two. Needs an idle machine."""
    if models:
        return
    try:
        import ray
    except ImportError:
        log("workers are skipped: Ray is not installed (pip install 'ray[default]').")
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        single, double = (measure(ray, count) for count in (1, 2))
    finally:
        torch.set_num_threads(threads)
    rows = [
        [name, f"{single[name]:.1f}", f"{double[name]:.1f}", f"{single[name] / double[name]:.2f}"]
        for name in single
    ]
    header = ["stage", "one worker, s", "two workers, s", "ratio"]
    caption = f"{MODEL}, {WINDOWS} windows of {LENGTH} tokens; {machine()}."
    write_section("workers", f"{caption}\n\n{table(header, rows)}")


def measure(ray, count: int) -> dict[str, float]:
    """Return the seconds by stage, with empty caches and the models loaded by the workers."""
    ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    seconds = {}
    try:
        with empty_cache(), tempfile.TemporaryDirectory() as folder, on_cluster():
            for name, run in stages(Path(folder)):
                _, seconds[name] = timed(run)
                log(f"{count} workers, {name}: {seconds[name]:.1f} s")
    finally:
        ray.shutdown()
    return {name: value for name, value in seconds.items() if name != "start"}


def stages(folder: Path) -> list[tuple[str, Stage]]:
    """Return the stages in order; later stages read the results of earlier ones."""
    model = lrcore.load(MODEL)
    recipe = lrcore.Recipe(MODEL, samples=WINDOWS, seq_len=LENGTH)
    tiny = recipe.with_(samples=16, seq_len=8, seed=1)
    demo = lrcore.load(PROBES)
    sweep = lrcore.Sweep(recipe, list(METHODS), ["uniform"], list(RATIOS))
    calibrations: list[Calibration] = []

    def factorize(method: str) -> Factorization:
        return lrcore.factorize(model, calibrations[0], method)

    probed = lrcore.Recipe(PROBES, method=PROBED, policy="probed")
    return [
        # workers start and read the models
        (
            "start",
            lambda: [lrcore.calibrate(model, tiny), lrcore.calibrate(demo, probed)],
        ),
        ("calibration", lambda: calibrations.append(lrcore.calibrate(model, recipe))),
        *((f"factorization, {method}", partial(factorize, method)) for method in FACTORIZED),
        (f"probes, {PROBED}, {PROBES}", lambda: lrcore.prepare(demo, probed)),
        (
            f"sweep of {len(METHODS) * len(RATIOS)} cells",
            lambda: lrcore.run_sweep(model, sweep, folder / "sweep"),
        ),
    ]
