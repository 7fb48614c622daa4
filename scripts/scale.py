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

from bench.made_up import SHAPES, write_model, write_text  # noqa: E402 (after the path)
from bench.page import machine, note, table, write_section  # noqa: E402 (after the path)

WHOLE = 32  # layers of both
NAMES = ("llama-2-7b", "llama-3-8b")
METHODS = ("a3", "care", "modegpt", "svd_llm", "latentllm", "fused")
SAMPLES, LENGTH, RATIO, TEXTS = 16, 512, 0.3, 2000
DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}
PRODUCTS = 3  # of which the rate is taken


@dataclass(frozen=True)
class Measured:
    """Seconds by stage, of the whole process, and of processors; bytes: peak of the process, and
    what it left in the cache.
    """

    seconds: dict[str, float]
    total: float
    processors: float
    peak: int
    cache: int


def main() -> None:
    """Read the arguments, make the model where it is not there, and measure what is not known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=NAMES)
    parser.add_argument("--layers", type=int, default=WHOLE)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
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
            rows[name] = asdict(measure(place, name))
            known.write_text(json.dumps(rows, indent=1, allow_nan=False))
        write_section(
            f"scale {given.shape} {given.layers}", section(folder, given.shape, given.layers, rows)
        )


# --- measuring ---


def measure(place: Path, name: str) -> Measured:
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
    return Measured(seconds, total, used.ru_utime + used.ru_stime, peak_of(used), size)


def peak_of(used: resource.struct_rusage) -> int:
    """Bytes that were resident at once; Linux counts them in kilobytes."""
    return used.ru_maxrss * 1024


# --- the page ---


def section(folder: Path, shape: str, layers: int, rows: dict[str, dict]) -> str:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    rates = {dtype: matmul_rate(dtype) for dtype in DTYPES}
    rate = ", ".join(f"{rates[one]:.0f} in {name}" for one, name in DTYPES.items())
    heading = (
        f"{layers} of the {WHOLE} layers of {shape}, {size / 1e9:.1f} GB in bfloat16; "
        f"`--offload --ratio {RATIO} --samples {SAMPLES} --seq-len {LENGTH}`, uniform ranks; "
        f"{machine()}; GFLOP/s of a product of two matrices of 4096: {rate}."
    )
    columns = ["", "calibrate, s", "factorise, s", "compress, s", "per layer, s", "in all, min"]
    columns += ["processors, min", "peak, GB"]
    cells = [row(name, Measured(**one), layers) for name, one in rows.items()]
    moments = f"Moments on the disk: {rows['calibrate']['cache'] / 1e9:.2f} GB."
    least, took = layers * calibration_bound(shape, rates), rows["calibrate"]["total"]
    share = (
        "At these rates the products of calibration alone, the forward pass in bfloat16 and one "
        f"triangle of every second moment in float32, take {least:,.0f} s, {least / took:.0%} of "
        "the time that it took."
    )
    return "\n\n".join((heading, table(columns, cells), f"{moments} {share}"))


def row(name: str, one: Measured, layers: int) -> list[str]:
    stages = ("calibrate", "factorise", "compress")
    spent = {stage: one.seconds.get(stage, 0.0) for stage in stages}
    if name != "calibrate":
        del spent["calibrate"]  # read from the cache
    known = [f"{spent[stage]:,.1f}" if stage in spent else "" for stage in stages]
    if name == "calibrate":
        known[1:] = ["", ""]
    per_layer = f"{sum(spent.values()) / layers:,.1f}"
    minutes = [f"{seconds / 60:,.1f}" for seconds in (one.total, one.processors)]
    return [name, *known, per_layer, *minutes, f"{one.peak / 1e9:.2f}"]


def calibration_bound(shape: str, rates: dict[torch.dtype, float]) -> float:
    """Seconds that the matrix products of calibrating one layer take at these GFLOP/s: those of its
    projections, and of the second moments of what these read, of one triangle.
    """
    sizes, tokens = SHAPES[shape], SAMPLES * LENGTH
    wide, neurons = sizes["hidden_size"], sizes["intermediate_size"]
    kv = wide * sizes["num_key_value_heads"] // sizes["num_attention_heads"]
    weights = 2 * wide * (wide + kv) + 3 * wide * neurons
    forward = 2 * weights * tokens / rates[torch.bfloat16]
    return (forward + (3 * wide**2 + neurons**2) * tokens / rates[torch.float32]) / 1e9


def matmul_rate(dtype: torch.dtype) -> float:
    """GFLOP/s of this machine now: what the stages are bound by."""
    a = torch.randn(4096, 4096, dtype=dtype)
    a @ a
    began = time.perf_counter()
    for _ in range(PRODUCTS):
        a @ a
    return PRODUCTS * 2 * 4096**3 / (time.perf_counter() - began) / 1e9


if __name__ == "__main__":
    main()
