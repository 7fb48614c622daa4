"""What methods become as latent attention of transformers, and in llama.cpp with rounded matrices:
measured, and written to docs/serving.md.

    python scripts/by_method.py [MODEL ...]        demo-llama and smollm2-135m by default

Each model is exported, loaded there without this package, and held against the model itself in
float32 by the prompts and the sentence of scripts/where_it_runs.py. The table of llama.cpp is left
out where xllamacpp is not installed.
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

import where_it_runs as runs  # noqa: E402 (after the path)
from bench.page import note, table, write_section  # noqa: E402 (after the path)

import lrcore  # noqa: E402 (after the path)

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
    "in the folder",
    "cached per token",
    "in the folder",
    "same tokens",
    "logits",
    "perplexity",
)
GGUF_HEADER = (
    "method, policy",
    "type",
    "architecture",
    "parameters",
    "in the file",
    "cached per token",
    "in llama.cpp",
    "same tokens",
    "perplexity",
)


def compressed(dense: lrcore.LoadedModel, changes: Changes) -> lrcore.LoadedModel:
    """The dense model where nothing is to be changed."""
    if not changes:
        return dense
    how = {"samples": 32, "seq_len": 256} | changes
    return lrcore.compress(dense, lrcore.Recipe(dense.name, **how))


def sizes(model: lrcore.LoadedModel, written: Any) -> list[str]:
    """Parameters, and numbers cached per token: of the model, and in what was written."""
    own = (model.size.parameters, written.parameters)
    return [*(f"{one:,}" for one in own), str(model.size.kv_values), str(written.kv_values)]


def compared(model: lrcore.LoadedModel, place: Path, there: runs.Runner) -> runs.Cell:
    """Greedy tokens and perplexity there, against the model here."""
    prompts, sentence = runs.questions(model)
    found = [there.greedy(ids, runs.TOKENS) for ids in prompts]
    return runs.held_against(model, place, found, there.perplexity(sentence), None)


def tokens(cell: runs.Cell) -> str:
    same, count = cell.same
    return "all" if same == count else f"{same} of {count}"


@torch.inference_mode()
def moved(model: lrcore.LoadedModel, network: Any) -> str:
    """The largest difference of a logit over the sentence, of the largest logit."""
    ids = torch.tensor([runs.questions(model)[1]])
    here, there = model.network(ids).logits, network(ids).logits
    return f"{float((there - here).abs().max() / here.abs().max()):.1e}"


def as_latents(title: str, model: lrcore.LoadedModel) -> list[str]:
    """A row of the table of latent attention."""
    with tempfile.TemporaryDirectory() as folder:
        written = lrcore.export_mla(model, Path(folder) / "out")
        there = runs.loaded(written.path)
        cell = compared(model, written.path, there)
        found = [tokens(cell), moved(model, there.network), f"{cell.perplexity:+.4%}"]
        return [title, *sizes(model, written), *found]


def as_file(title: str, model: lrcore.LoadedModel, kind: str) -> list[str]:
    """A row of the table of llama.cpp. kind: of the matrices."""
    with tempfile.TemporaryDirectory() as folder:
        written = lrcore.export_gguf(model, Path(folder) / "model.gguf", kind)
        there = runs.InLlamaCpp(written.path, model.network.config.vocab_size)
        cell = compared(model, Path(folder), there)
        found = [tokens(cell), f"{cell.perplexity:+.2%}"]
        return [title, f"`{kind}`", written.architecture, *sizes(model, written), *found]


def latents(dense: lrcore.LoadedModel) -> list[list[str]]:
    """The rows of the table of latent attention."""
    rows = []
    for title, changes in MLA.items():
        rows.append(as_latents(title, compressed(dense, changes)))
        note(f"{dense.name}: {rows[-1]}")
    return rows


def files(dense: lrcore.LoadedModel) -> list[list[str]]:
    """The rows of the table of llama.cpp."""
    rows = []
    for title, changes in GGUF.items():
        model = compressed(dense, {"ratio": GGUF_RATIO} | changes if changes else {})
        for kind in ("f16", "q8_0") if title in IN_8_BITS else ("f16",):
            rows.append(as_file(title, model, kind))
            note(f"{dense.name}: {rows[-1]}")
    return rows


def write(section: str, name: str, header: Sequence[str], rows: list[list[str]]) -> None:
    """section: of the page, without the model."""
    words = ", ".join(f"{one} {version(one).split('+')[0]}" for one in (*WITH[section], "torch"))
    text = f"**{name}** on a CPU; {words}.\n\n{table(list(header), rows)}"
    write_section(f"{section} {name}", text, runs.PAGE)


def main() -> None:
    """Read the arguments; write both tables of every model."""
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
