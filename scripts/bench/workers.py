"""What a second worker of a Ray cluster gives, on one machine with a thread for each worker."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import lrcore

from .page import empty_cache, machine, note, table, timed, write_section

MODEL = "smollm2-135m"
WINDOWS, LENGTH = 32, 512  # of the calibration
PROBED, PROBES = "svd_llm", "demo-llama"  # of MODEL they take over 15 minutes of a thread
METHODS, RATIOS = ("a3", "modegpt", "svd", "svd_llm"), (0.2, 0.4)  # of the sweep
FACTORISED = ("svd_llm", "modegpt")
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
    words = f"{MODEL}, {WINDOWS} windows of {LENGTH} tokens; {machine()}."
    write_section("workers", f"{words}\n\n{table(header, rows)}")


def measured(ray, count: int) -> dict[str, float]:
    """Seconds by stage, with caches that are empty, of workers that have the model."""
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
    model = lrcore.load(MODEL)
    recipe = lrcore.Recipe(MODEL, samples=WINDOWS, seq_len=LENGTH)
    tiny = recipe.with_(samples=16, seq_len=8, seed=1)
    small = lrcore.load(PROBES)
    sweep = lrcore.Sweep(recipe, list(METHODS), ["uniform"], list(RATIOS))
    found: list[lrcore.Calibration] = []

    def factorise(method: str) -> lrcore.Factorisation:
        return lrcore.factorise(model, found[0], method)

    probed = lrcore.Recipe(PROBES, method=PROBED, policy="probed")
    return [
        # workers start, and read the model
        ("start", lambda: [lrcore.calibrate(*one) for one in ((model, tiny), (small, probed))]),
        ("calibration", lambda: found.append(lrcore.calibrate(model, recipe))),
        *((f"factorising, {method}", partial(factorise, method)) for method in FACTORISED),
        (f"probes, {PROBED}, {PROBES}", lambda: lrcore.prepare(small, probed)),
        (
            f"sweep of {len(METHODS) * len(RATIOS)} cells",
            lambda: lrcore.run_sweep(model, sweep, folder / "sweep"),
        ),
    ]
