"""What compressing a model of the shape of Llama-2-7B or Llama-3-8B takes: seconds by stage, peak
memory and disk, written to docs/benchmarks.md.

    python scripts/scale.py llama-2-7b                  all 32 layers: 14 GB of disk, hours
    python scripts/scale.py llama-2-7b --layers 2       the same layers, two of them: minutes

The weights are made up: in bfloat16, every matrix the product of two random ones and singular
values that fall by a power law, so that solvers work as on a trained model. Its perplexity means
nothing. The model is kept in build/scale and written once, and the
methods share its moments. A run goes on where it ended: what was measured is kept beside the model.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from bench.page import machine, note, table, write_section  # noqa: E402 (after the path)

from lrcore.data import load_texts  # noqa: E402 (after the path)
from lrcore.models.hub import locate  # noqa: E402 (after the path)

SHARED = {"hidden_size": 4096, "num_attention_heads": 32, "tie_word_embeddings": False}
SHAPES = {
    "llama-2-7b": SHARED | {"num_key_value_heads": 32, "intermediate_size": 11008},
    "llama-3-8b": SHARED | {"num_key_value_heads": 8, "intermediate_size": 14336},
}
WHOLE, VOCABULARY = 32, 32_000  # layers of both; the tokenizer is a demo model's
METHODS = ("a3", "care", "modegpt", "svd_llm", "latentllm", "fused")
DECAY = 0.5  # singular values fall as the index to the power of minus this
SIZE = 0.02  # spread of the weights
SAMPLES, LENGTH, RATIO, TEXTS = 16, 512, 0.3, 2000


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
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=WHOLE)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    given = parser.parse_args()
    place = ROOT / "build" / "scale" / f"{given.shape}-{given.layers}"
    folder, known = place / "model", place / "measured.json"
    if not (folder / "config.json").exists():
        write_model(folder, SHAPES[given.shape], given.layers)
    write_text(place / "text.jsonl")
    rows = json.loads(known.read_text()) if known.exists() else {}
    for name in ("calibrate", *given.methods):
        if name not in rows:
            note(f"{given.shape}, {given.layers} layers: {name}")
            rows[name] = asdict(measure(place, name))
            known.write_text(json.dumps(rows, indent=1, allow_nan=False))
        write_section(
            f"scale {given.shape} {given.layers}", section(folder, given.shape, given.layers, rows)
        )


# --- the model ---


def write_model(folder: Path, shape: dict, layers: int) -> None:
    """A folder as transformers writes it, a file per layer; config.json comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(**shape, num_hidden_layers=layers, vocab_size=VOCABULARY, dtype="bfloat16")
    config.architectures = ["LlamaForCausalLM"]
    generator, files = torch.Generator().manual_seed(0), {}
    for number, tensors in enumerate(parts(config, generator)):
        name = f"model-{number:05}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, name)
        note(f"written: {name}")
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, allow_nan=False))
    for file in locate("demo-llama").glob("token*"):
        shutil.copy(file, folder)
    config.save_pretrained(folder)


def parts(config: LlamaConfig, generator: torch.Generator) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of each file: embeddings and head, then layer by layer."""
    wide, kv = config.hidden_size, config.num_key_value_heads * config.head_dim
    neurons, one = config.intermediate_size, torch.ones(config.hidden_size, dtype=torch.bfloat16)
    words = {"model.embed_tokens.weight", "lm_head.weight"}
    yield {name: drawn(VOCABULARY, wide, generator).bfloat16() for name in sorted(words)} | {
        "model.norm.weight": one
    }
    matrices = {
        "self_attn.q_proj": (wide, wide),
        "self_attn.k_proj": (kv, wide),
        "self_attn.v_proj": (kv, wide),
        "self_attn.o_proj": (wide, wide),
        "mlp.gate_proj": (neurons, wide),
        "mlp.up_proj": (neurons, wide),
        "mlp.down_proj": (wide, neurons),
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    for layer in range(config.num_hidden_layers):
        place = f"model.layers.{layer}."
        yield {
            f"{place}{name}.weight": power_law(*size, generator) for name, size in matrices.items()
        } | {f"{place}{name}.weight": one.clone() for name in norms}


def power_law(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """[rows, columns] bfloat16: two Gaussian matrices with a power law between them."""
    count = min(rows, columns)
    values = torch.arange(1, count + 1, dtype=torch.float32) ** -DECAY
    left, right = drawn(rows, count, generator), drawn(count, columns, generator)
    product = (left * values) @ right
    return (product * (SIZE / product.std())).bfloat16()


def drawn(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Gaussian [rows, columns] float32 of spread SIZE."""
    return torch.randn(rows, columns, generator=generator).mul_(SIZE)


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


def write_text(file: Path) -> None:
    """A few texts to calibrate on: the whole data set takes memory of its own."""
    texts = load_texts("stories", "calibration").documents[:TEXTS]
    file.write_text(
        "".join(json.dumps({"text": text}, allow_nan=False) + "\n" for text in texts),
        encoding="utf-8",
    )


# --- the page ---


def section(folder: Path, shape: str, layers: int, rows: dict[str, dict]) -> str:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    heading = (
        f"{layers} of the {WHOLE} layers of {shape}, {size / 1e9:.1f} GB in bfloat16; "
        f"`--offload --ratio {RATIO} --samples {SAMPLES} --seq-len {LENGTH}`, uniform ranks; "
        f"{machine()}; a product of two float32 matrices of 4096: {matmul_rate():.0f} GFLOP/s."
    )
    columns = ["", "calibrate, s", "factorise, s", "compress, s", "per layer, s", "in all, min"]
    columns += ["processors, min", "peak, GB"]
    cells = [row(name, Measured(**one), layers) for name, one in rows.items()]
    moments = f"Moments on the disk: {rows['calibrate']['cache'] / 1e9:.2f} GB."
    return "\n\n".join((heading, table(columns, cells), moments))


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


def matmul_rate() -> float:
    """GFLOP/s of this machine now: what the stages are bound by."""
    a = torch.randn(4096, 4096)
    a @ a
    began = time.perf_counter()
    a @ a
    return 2 * 4096**3 / (time.perf_counter() - began) / 1e9


if __name__ == "__main__":
    main()
