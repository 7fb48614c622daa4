"""What compressing a model of the shape of Llama-2-7B or Llama-3-8B takes: seconds by stage, peak
memory and disk, written to docs/benchmarks.md.

    python scripts/scale.py llama-2-7b                  all 32 layers: 14 GB of disk, hours
    python scripts/scale.py llama-2-7b --layers 2       the same layers, two of them: minutes

The weights are made up (scripts/bench/made_up.py). The model is kept in build/scale and written
once, and the methods share its moments. A run goes on where it ended: what was measured is kept
beside the model.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from bench import operations  # noqa: E402 (after the path)
from bench.made_up import SHAPES, write_model, write_text  # noqa: E402 (after the path)
from bench.page import machine, note, table, write_section  # noqa: E402 (after the path)

from lrcore.methods import find_method  # noqa: E402 (after the path)

WHOLE = 32  # layers of both
NAMES = ("llama-2-7b", "llama-3-8b")
METHODS = ("a3", "care", "modegpt", "svd_llm", "latentllm", "fused")
SAMPLES, LENGTH, RATIO, TEXTS = 16, 512, 0.3, 2000
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
PRODUCTS = 3  # of which the rate is taken


@dataclass(frozen=True)
class Measured:
    """Seconds by stage, of the whole process, and of processors; bytes: peak of the process, and
    what it left in the cache; by dtype, GFLOP/s of matrix products right after, and the operations
    of a layer in calibrating or factorising; the machine, in words.
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
        """Seconds that the operations take at these rates."""
        each = (count / self.rates[dtype] for dtype, count in self.operations.items())
        return layers * sum(each) / 1e9


def main() -> None:
    """Read the arguments, make the model where it is not there, and measure what is not known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=NAMES)
    parser.add_argument("--layers", type=int, default=WHOLE)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=tuple(METHODS))
    given = parser.parse_args()
    place = ROOT / "build" / "scale" / f"{given.shape}-{given.layers}"
    folder, known = place / "model", place / "measured.json"
    if not (folder / "config.json").exists():
        write_model(folder, SHAPES[given.shape], num_hidden_layers=given.layers)
    write_text(place / "text.jsonl", TEXTS)
    rows = json.loads(known.read_text()) if known.exists() else {}
    for name in ("calibrate", *given.methods):
        if name not in rows:
            note(f"{given.shape}, {given.layers} layers: {name}")
            rows[name] = asdict(measure(place, name, SHAPES[given.shape]))
            known.write_text(json.dumps(rows, indent=1, allow_nan=False))
        text = section(folder, given.shape, given.layers, rows)
        write_section(f"scale {given.shape} {given.layers}", text)


# --- measuring ---


def measure(place: Path, name: str, shape: dict[str, int]) -> Measured:
    """`lrcore calibrate`, or `lrcore compress --offload` by a method, in a process of its own; they
    share a cache, so that calibration is measured once.
    """
    cache, out = place / "cache", place / "out"
    command = [sys.executable, "-m", "lrcore"]
    command += ["calibrate"] if name == "calibrate" else ["compress", "--method", name]
    command += [str(place / "model"), "--offload", "--dtype", "auto", "--device", "cpu"]
    command += ["--data", str(place / "text.jsonl")]
    command += ["--samples", str(SAMPLES), "--seq-len", str(LENGTH), "--json"]
    if name != "calibrate":
        command += ["--ratio", str(RATIO), "--out", str(out)]
    own = {"PYTHONPATH": str(ROOT), "LRCORE_CACHE": str(cache), "LRCORE_CACHE_LIMIT": "100GB"}
    began = time.perf_counter()
    with (place / "report.json").open("w") as report:
        process = subprocess.Popen(command, env=os.environ | own, stdout=report)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    total = time.perf_counter() - began
    seconds = {"calibrate": total}
    if name != "calibrate":
        seconds = json.loads((place / "report.json").read_text())["seconds"]
    shutil.rmtree(out, ignore_errors=True)
    size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    rates = {dtype: matmul_rate(dtype) for dtype in DTYPES}
    spent, count = used.ru_utime + used.ru_stime, operations_of(shape, name)
    return Measured(seconds, total, spent, peak_of(used), size, rates, count, machine())


def peak_of(used: resource.struct_rusage) -> int:
    """Bytes that were resident at once; Linux counts them in kilobytes."""
    return used.ru_maxrss * 1024


def operations_of(shape: dict[str, int], name: str) -> dict[str, float]:
    """Of one layer by dtype: of the products of calibrating it, or of factorising it."""
    if name == "calibrate":
        return calibration_operations(shape)
    counted = operations.of_a_layer(shape, name, find_method(name).with_first_forms({}))
    return {str(dtype).removeprefix("torch."): count for dtype, count in counted.items()}


def calibration_operations(shape: dict[str, int]) -> dict[str, float]:
    """Those of the projections of one layer, and of the second moments of what these read, of one
    triangle.
    """
    wide, neurons, tokens = shape["hidden_size"], shape["intermediate_size"], SAMPLES * LENGTH
    kv = wide * shape["num_key_value_heads"] // shape["num_attention_heads"]
    weights = 2 * wide * (wide + kv) + 3 * wide * neurons
    triangles = (3 * wide**2 + neurons**2) * tokens
    return {"bfloat16": 2.0 * weights * tokens, "float32": float(triangles)}


def matmul_rate(name: str) -> float:
    """GFLOP/s of this machine now: what the stages are bound by."""
    a = torch.randn(4096, 4096, dtype=DTYPES[name])
    a @ a
    began = time.perf_counter()
    for _ in range(PRODUCTS):
        a @ a
    return PRODUCTS * 2 * 4096**3 / (time.perf_counter() - began) / 1e9


# --- the page ---


def section(folder: Path, shape: str, layers: int, rows: dict[str, dict]) -> str:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    rates = rows["calibrate"]["rates"]
    rate = ", ".join(f"{rates[name]:.0f} in {name}" for name in DTYPES)
    heading = (
        f"{layers} of the {WHOLE} layers of {shape}, {size / 1e9:.1f} GB in bfloat16; "
        f"`--offload --ratio {RATIO} --samples {SAMPLES} --seq-len {LENGTH}`, uniform ranks; "
        f"{machines(rows)}; GFLOP/s of a product of two matrices of 4096 after calibrating: {rate}."
    )
    columns = ["", "calibrate, s", "factorise, s", "of its bound", "compress, s", "per layer, s"]
    columns += ["in all, min", "processors, min", "peak, GB", "float64, GFLOP/s"]
    known = [name for name in ("calibrate", *METHODS) if name in rows]
    cells = [row(name, Measured(**rows[name]), layers) for name in known]
    ending = (
        f"Moments on the disk: {rows['calibrate']['cache'] / 1e9:.2f} GB. Of its bound: what "
        "products and decompositions alone take at the rates measured with the row, as a share of "
        "the time that it took; of calibrating, the forward pass in bfloat16 and one triangle of "
        "every second moment in float32; of factorising, in float64."
    )
    return "\n\n".join((heading, table(columns, cells), ending))


def machines(rows: dict[str, dict]) -> str:
    """Where the rows were measured; their names where there were several machines."""
    found: dict[str, list[str]] = {}
    for name, one in rows.items():
        found.setdefault(one["machine"], []).append(f"`{name}`")
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(names)}: {where}" for where, names in found.items())


def row(name: str, one: Measured, layers: int) -> list[str]:
    stages = ("calibrate", "factorise", "compress")
    spent = {stage: one.seconds.get(stage, 0.0) for stage in stages}
    if name != "calibrate":
        del spent["calibrate"]  # read from the cache
    known = [f"{spent[stage]:,.1f}" if stage in spent else "" for stage in stages]
    if name == "calibrate":
        known[1:] = ["", ""]
    took = one.total if name == "calibrate" else spent["factorise"]
    known.insert(2, f"{one.bound(layers) / took:.0%}")
    per_layer = f"{sum(spent.values()) / layers:,.1f}"
    minutes = [f"{seconds / 60:,.1f}" for seconds in (one.total, one.processors)]
    return [
        name,
        *known,
        per_layer,
        *minutes,
        f"{one.peak / 1e9:.2f}",
        f"{one.rates['float64']:.0f}",
    ]


if __name__ == "__main__":
    main()
