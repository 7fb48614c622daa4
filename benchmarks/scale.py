"""Cost of compressing models of the shapes of Llama-2-7B and Llama-3-8B: seconds by stage, peak
memory and disk, written to docs/benchmarks/scale.md.

    python -m benchmarks.scale llama-2-7b                all 32 layers: 14 GB of disk, hours
    python -m benchmarks.scale llama-2-7b --layers 2     two of the layers: minutes

The weights are random (benchmarks/random_models.py). The model is written once to build/scale, and
the methods share its moments. Results are stored with the model, so that an interrupted run can
continue.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from lrcore.methods import find_method

from . import operations
from .machine import ROOT, machine
from .random_models import MODEL_SHAPES, write_model, write_text
from .report import log, table, write_section

ALL_LAYERS = 32  # of both shapes
NAMES = ("llama-2-7b", "llama-3-8b")
METHODS = ("a3", "care", "modegpt", "svd_llm", "latentllm", "fused")
SAMPLES, LENGTH, RATIO, TEXTS = 16, 512, 0.3, 2000
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
PRODUCTS = 3  # timed products per dtype


@dataclass(frozen=True)
class Measurement:
    """Cost of a run.

    seconds: by stage; total: of the process; processors: processor time; peak, cache: bytes of
    resident memory and of the cache folder; rates: GFLOP/s of matrix products after the run, by
    dtype; operations: of a layer in calibration or factorization, by dtype; machine: its name.
    """

    seconds: dict[str, float]
    total: float
    processors: float
    peak: int
    cache: int
    rates: dict[str, float]
    operations: dict[str, float]
    machine: str

    def bound(self, layers: int) -> float:
        """Return the seconds of the operations at these rates."""
        per_dtype = (count / self.rates[dtype] for dtype, count in self.operations.items())
        return layers * sum(per_dtype) / 1e9


def main() -> None:
    """Read the arguments, write the model if it is missing, and measure the missing rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shape", choices=NAMES)
    parser.add_argument("--layers", type=int, default=ALL_LAYERS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=tuple(METHODS))
    arguments = parser.parse_args()
    shape, layers = arguments.shape, arguments.layers
    parent = ROOT / "build" / "scale" / f"{shape}-{layers}"
    folder, results = parent / "model", parent / "measured.json"
    if not (folder / "config.json").exists():
        write_model(folder, MODEL_SHAPES[shape], num_hidden_layers=layers)
    write_text(parent / "text.jsonl", TEXTS)
    rows = json.loads(results.read_text()) if results.exists() else {}
    for name in ("calibrate", *arguments.methods):
        if name not in rows:
            log(f"{shape}, {layers} layers: {name}")
            rows[name] = asdict(measure(parent, name, MODEL_SHAPES[shape]))
            results.write_text(json.dumps(rows, indent=1, allow_nan=False))
        write_section(f"scale {shape} {layers}", section(folder, shape, layers, rows))


# ---- measuring


def measure(parent: Path, name: str, shape: dict[str, int]) -> Measurement:
    """Run `lrcore calibrate`, or `lrcore compress --offload` by a method, in a separate process.

    All runs share a cache, so that only the first run calibrates.
    """
    cache, out = parent / "cache", parent / "out"
    command = [sys.executable, "-m", "lrcore"]
    command += ["calibrate"] if name == "calibrate" else ["compress", "--method", name]
    command += [str(parent / "model"), "--offload", "--dtype", "auto", "--device", "cpu"]
    command += ["--data", str(parent / "text.jsonl")]
    command += ["--samples", str(SAMPLES), "--seq-len", str(LENGTH), "--json"]
    if name != "calibrate":
        command += ["--ratio", str(RATIO), "--out", str(out)]
    environment = {
        "PYTHONPATH": str(ROOT),
        "LRCORE_CACHE": str(cache),
        "LRCORE_CACHE_LIMIT": "100GB",
    }
    start = time.perf_counter()
    with (parent / "report.json").open("w") as report:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=report)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    total = time.perf_counter() - start
    seconds = {"calibrate": total}
    if name != "calibrate":
        seconds = json.loads((parent / "report.json").read_text())["seconds"]
    shutil.rmtree(out, ignore_errors=True)
    size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    rates = {dtype: matmul_rate(dtype) for dtype in DTYPES}
    processors, count = usage.ru_utime + usage.ru_stime, count_operations(shape, name)
    return Measurement(
        seconds, total, processors, peak_memory(usage), size, rates, count, machine()
    )


def peak_memory(usage: resource.struct_rusage) -> int:
    """Return the peak of the resident bytes; Linux counts kilobytes."""
    return usage.ru_maxrss * 1024


def count_operations(shape: dict[str, int], name: str) -> dict[str, float]:
    """Return the operations of calibrating or factorizing a layer, by dtype."""
    if name == "calibrate":
        return calibration_operations(shape)
    counts = operations.count_layer(shape, name, find_method(name).with_first_forms({}))
    return {str(dtype).removeprefix("torch."): count for dtype, count in counts.items()}


def calibration_operations(shape: dict[str, int]) -> dict[str, float]:
    """Return the operations of the projections of a layer, and of one triangle of the second
    moments of their inputs.
    """
    width, neurons, tokens = shape["hidden_size"], shape["intermediate_size"], SAMPLES * LENGTH
    kv = width * shape["num_key_value_heads"] // shape["num_attention_heads"]
    weights = 2 * width * (width + kv) + 3 * width * neurons
    triangles = (3 * width**2 + neurons**2) * tokens
    return {"bfloat16": 2.0 * weights * tokens, "float32": float(triangles)}


def matmul_rate(name: str) -> float:
    """Return the current GFLOP/s of matrix products on this machine."""
    a = torch.randn(4096, 4096, dtype=DTYPES[name])
    a @ a
    start = time.perf_counter()
    for _ in range(PRODUCTS):
        a @ a
    return PRODUCTS * 2 * 4096**3 / (time.perf_counter() - start) / 1e9


# ---- table


def section(folder: Path, shape: str, layers: int, rows: dict[str, dict]) -> str:
    """Return the protocol, a row per run, and the definition of the bound."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    rates = rows["calibrate"]["rates"]
    rate = ", ".join(f"{rates[name]:.0f} in {name}" for name in DTYPES)
    heading = (
        f"{layers} of the {ALL_LAYERS} layers of {shape}, {size / 1e9:.1f} GB in bfloat16; "
        f"`--offload --ratio {RATIO} --samples {SAMPLES} --seq-len {LENGTH}`, uniform ranks; "
        f"{machines(rows)}; GFLOP/s of a product of two matrices of 4096 after calibration: {rate}."
    )
    columns = ["run", "calibrate, s", "factorize, s", "bound / time", "compress, s", "per layer, s"]
    columns += ["total, min", "processors, min", "peak, GB", "float64, GFLOP/s"]
    names = [name for name in ("calibrate", *METHODS) if name in rows]
    cells = [row(name, Measurement(**rows[name]), layers) for name in names]
    ending = (
        f"Moments on disk: {rows['calibrate']['cache'] / 1e9:.2f} GB. The bound is the time of the "
        "products and decompositions at the rates measured with the row: for calibration, of the "
        "forward pass in bfloat16 and one triangle of each second moment in float32; for "
        "factorization, in float64."
    )
    return "\n\n".join((heading, table(columns, cells), ending))


def machines(rows: dict[str, dict]) -> str:
    """Return the machine of the rows, or each machine with its rows."""
    names: dict[str, list[str]] = {}
    for name, measurement in rows.items():
        names.setdefault(measurement["machine"], []).append(f"`{name}`")
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{', '.join(runs)}: {computer}" for computer, runs in names.items())


def row(name: str, measurement: Measurement, layers: int) -> list[str]:
    """Return the row of a run."""
    stages = ("calibrate", "factorize", "compress")
    seconds = {stage: measurement.seconds.get(stage, 0.0) for stage in stages}
    if name != "calibrate":
        del seconds["calibrate"]  # read from the cache
    cells = [f"{seconds[stage]:,.1f}" if stage in seconds else "" for stage in stages]
    if name == "calibrate":
        cells[1:] = ["", ""]
    bounded = measurement.total if name == "calibrate" else seconds["factorize"]
    cells.insert(2, f"{measurement.bound(layers) / bounded:.0%}")
    per_layer = f"{sum(seconds.values()) / layers:,.1f}"
    minutes = [f"{value / 60:,.1f}" for value in (measurement.total, measurement.processors)]
    return [
        name,
        *cells,
        per_layer,
        *minutes,
        f"{measurement.peak / 1e9:.2f}",
        f"{measurement.rates['float64']:.0f}",
    ]


if __name__ == "__main__":
    main()
