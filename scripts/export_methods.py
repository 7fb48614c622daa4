"""Compare methods after export as latent attention and to llama.cpp, for docs/serving.md.

    python scripts/export_methods.py [MODEL ...]        default: demo-llama and smollm2-135m

Each model is exported, loaded without this package, and compared with the model in float32 on the
prompts and the sentence of scripts/export_targets.py. The table of llama.cpp is skipped if
xllamacpp is not installed.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import export_targets as runs  # noqa: E402 (after the path)

import lrcore  # noqa: E402 (after the path)
from benchmarks.report import log, table, write_section  # noqa: E402 (after the path)

Changes = Mapping[str, Any]
MLA: dict[str, Changes] = {
    "dense": {},
    "care, 25 % of the cache, `k=0`": {
        "method": "care",
        "ratio": 0.25,
        "component_ratios": {"k": 0.0},
    },
    "care, 30 % of the cache": {"method": "care", "ratio": 0.3},
    "a3, 30 %": {"method": "a3", "ratio": 0.3},
}
GGUF_RATIO = 0.3
GGUF: dict[str, Changes] = {
    "dense": {},
    "svd_llm, uniform": {"method": "svd_llm"},
    "latentllm, uniform": {"method": "latentllm"},
    "a3, uniform": {"method": "a3"},
    "modegpt, energy": {"method": "modegpt", "policy": "energy"},
    "fused, energy": {"method": "fused", "policy": "energy"},
    "care, uniform": {"method": "care"},
}
IN_8_BITS = ("dense",)
WITH = {"mla": ("transformers",), "llama.cpp": ("xllamacpp", "transformers")}
MLA_HEADER = (
    "method",
    "parameters",
    "exported parameters",
    "cached numbers per token",
    "exported cached numbers",
    "matching tokens",
    "change of logits",
    "change of perplexity",
)
GGUF_HEADER = (
    "method, policy",
    "type",
    "architecture",
    "parameters",
    "exported parameters",
    "cached numbers per token",
    "exported cached numbers",
    "matching tokens",
    "change of perplexity",
)


def compressed(dense: lrcore.LoadedModel, changes: Changes) -> lrcore.LoadedModel:
    """Compress the dense model; return it unchanged without changes."""
    if not changes:
        return dense
    settings = {"samples": 32, "seq_len": 256} | changes
    return lrcore.compress(dense, lrcore.Recipe(dense.name, **settings))


def sizes(model: lrcore.LoadedModel, exported: Any) -> list[str]:
    """Return parameters and cached numbers per token, of the model and of the export."""
    parameters = (model.size.parameters, exported.parameters)
    cached = (model.size.kv_values, exported.kv_values)
    return [*(f"{count:,}" for count in parameters), *map(str, cached)]


def compared(model: lrcore.LoadedModel, path: Path, runner: runs.Runner) -> runs.Cell:
    """Compare greedy tokens and perplexity of an export and of the model."""
    prompts, sentence = runs.questions(model)
    answers = [runner.greedy(ids, runs.TOKENS) for ids in prompts]
    return runs.held_against(model, path, answers, runner.perplexity(sentence), None)


def tokens(cell: runs.Cell) -> str:
    same, count = cell.same
    return "all" if same == count else f"{same} of {count}"


@torch.inference_mode()
def moved(model: lrcore.LoadedModel, network: Any) -> str:
    """Return the largest change of a logit over the sentence, relative to the largest logit."""
    ids = torch.tensor([runs.questions(model)[1]])
    expected, logits = model.network(ids).logits, network(ids).logits
    return f"{float((logits - expected).abs().max() / expected.abs().max()):.1e}"


def as_latents(title: str, model: lrcore.LoadedModel) -> list[str]:
    """Return a row of the table of latent attention."""
    with tempfile.TemporaryDirectory() as folder:
        exported = lrcore.export_mla(model, Path(folder) / "out")
        runner = runs.loaded(exported.path)
        cell = compared(model, exported.path, runner)
        results = [tokens(cell), moved(model, runner.network), f"{cell.perplexity:+.4%}"]
        return [title, *sizes(model, exported), *results]


def as_file(title: str, model: lrcore.LoadedModel, kind: str) -> list[str]:
    """Return a row of the table of llama.cpp. kind: type of the matrices."""
    with tempfile.TemporaryDirectory() as folder:
        exported = lrcore.export_gguf(model, Path(folder) / "model.gguf", kind)
        runner = runs.InLlamaCpp(exported.path, model.network.config.vocab_size)
        cell = compared(model, Path(folder), runner)
        results = [tokens(cell), f"{cell.perplexity:+.2%}"]
        return [title, f"`{kind}`", exported.architecture, *sizes(model, exported), *results]


def latents(dense: lrcore.LoadedModel) -> list[list[str]]:
    """Return the table of latent attention."""
    rows = []
    for title, changes in MLA.items():
        rows.append(as_latents(title, compressed(dense, changes)))
        log(f"{dense.name}: {rows[-1]}")
    return rows


def files(dense: lrcore.LoadedModel) -> list[list[str]]:
    """Return the table of llama.cpp."""
    rows = []
    for title, changes in GGUF.items():
        model = compressed(dense, {"ratio": GGUF_RATIO} | changes if changes else {})
        for kind in ("f16", "q8_0") if title in IN_8_BITS else ("f16",):
            rows.append(as_file(title, model, kind))
            log(f"{dense.name}: {rows[-1]}")
    return rows


def write(section: str, name: str, header: Sequence[str], rows: list[list[str]]) -> None:
    """Write a table to docs/serving.md. section: without the model name."""
    packages = (*WITH[section], "torch")
    words = ", ".join(f"{package} {version(package).split('+')[0]}" for package in packages)
    text = f"**{name}** on a CPU; {words}.\n\n{table(list(header), rows)}"
    write_section(f"{section} {name}", text, runs.PAGE)


def main() -> None:
    """Write both tables for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=runs.MODELS)
    for name in parser.parse_args().models:
        dense = lrcore.load(name)
        write("mla", name, MLA_HEADER, latents(dense))
        if "llama.cpp" in runs.targets_here():
            write("llama.cpp", name, GGUF_HEADER, files(dense))


if __name__ == "__main__":
    main()
