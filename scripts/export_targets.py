"""Measure exports of all structures in all targets, for docs/serving.md.

    python scripts/export_targets.py [MODEL ...]        default: demo-llama and smollm2-135m

Each structure is exported to each target, loaded without this package, and compared with the
compressed model: greedy tokens, perplexity, bytes on disk, and tokens per second relative to the
dense model in the same target, measured alternately. llama.cpp is skipped if xllamacpp is not
installed. For vLLM see scripts/vllm_models.py.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import lrcore  # noqa: E402 (after the path)
from benchmarks.machine import machine  # noqa: E402 (after the path)
from benchmarks.report import log, table, write_section  # noqa: E402 (after the path)

MODELS = ("demo-llama", "smollm2-135m")
PAGE = ROOT / "docs" / "serving.md"
PROMPTS = ("Once upon a time", "The little dog")
SENTENCE = "One day a girl went to the park with her dog, and they played until it was dark."
TOKENS, LONG, TURNS = 24, 32, 5
RATIO = 0.2
Ids = list[int]
STRUCTURES: dict[str, dict[str, Any] | None] = {
    "dense": None,
    "narrower MLPs, even": {"method": "fused", "target": "transformers-stock"},
    "narrower MLPs, by layer": {"method": "fused", "target": "llama.cpp", "policy": "energy"},
    "narrower heads and MLPs": {"method": "a3"},
    "low-rank pairs": {"method": "svd_llm"},
    "cached latents": {"method": "care"},
    "pairs in 4 bits": {"method": "svd_llm"},
}


class Runner(Protocol):
    """A model in a target."""

    def greedy(self, ids: Ids, count: int) -> Ids: ...

    def perplexity(self, ids: Ids) -> float: ...


@dataclass(frozen=True)
class Cell:
    """Result of a structure in a target.

    why: reason of a refusal; the other fields are then empty. same: number of greedy tokens that
    match those of the model, and their total. perplexity: relative change. bytes: on disk. speed:
    tokens per second, relative to the dense model.
    """

    why: str = ""
    same: tuple[int, int] = (0, 0)
    perplexity: float = 0.0
    bytes: int = 0
    speed: float | None = None


@dataclass(frozen=True)
class Here:
    """A network of transformers."""

    network: Any

    @torch.inference_mode()
    def greedy(self, ids: Ids, count: int) -> Ids:
        inputs = torch.tensor([ids])
        generated = self.network.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        return generated[0, len(ids) :].tolist()

    @torch.inference_mode()
    def perplexity(self, ids: Ids) -> float:
        logs = self.network(torch.tensor([ids])).logits[0].log_softmax(-1)
        of_tokens = logs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        return math.exp(-float(of_tokens.mean()))


class InLlamaCpp:
    """A GGUF file in llama.cpp."""

    def __init__(self, path: Path, vocabulary: int) -> None:
        sys.path.append(str(ROOT / "tests"))
        from llama_cpp import LlamaCpp

        self.file, self.vocabulary = LlamaCpp(path), vocabulary

    def greedy(self, ids: Ids, count: int) -> Ids:
        tokens, _ = self.file.complete(ids, count, ends=False)
        return [token["id"] for token in tokens]

    def perplexity(self, ids: Ids) -> float:
        return float(self.file.perplexity(ids, self.vocabulary))


# ---- targets: export to a folder, and load the export without this package


def in_transformers(model: lrcore.LoadedModel, path: Path) -> Runner:
    lrcore.export(model, path)
    return loaded(path, trust_remote_code=True)


def in_standard(model: lrcore.LoadedModel, path: Path) -> Runner:
    lrcore.export(model, path, standard=True)
    return loaded(path)


def in_mla(model: lrcore.LoadedModel, path: Path) -> Runner:
    lrcore.export_mla(model, path)
    return loaded(path)


def in_llama_cpp(model: lrcore.LoadedModel, path: Path) -> Runner:
    path.mkdir()
    lrcore.export_gguf(model, path / "model.gguf", "f32")
    return InLlamaCpp(path / "model.gguf", model.network.config.vocab_size)


def loaded(folder: Path, **options: Any) -> Here:
    """Load a folder with transformers in float32."""
    from transformers import AutoModelForCausalLM

    return Here(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval())


TARGETS: dict[str, Callable[[lrcore.LoadedModel, Path], Runner]] = {
    "transformers": in_transformers,
    "transformers-stock": in_standard,
    "llama.cpp": in_llama_cpp,
    "mla": in_mla,
}


# ---- measuring


def structures(
    name: str, samples: int = 32, only: Collection[str] = (), seq_len: int = 256
) -> Iterator[tuple[str, lrcore.LoadedModel]]:
    """Yield the models to export by structure. only: titles of selected structures."""
    dense = lrcore.load(name)
    for title, changes in STRUCTURES.items():
        if only and title not in only:
            continue
        model = dense
        if changes is not None:
            recipe = lrcore.Recipe(name, samples=samples, seq_len=seq_len, ratio=RATIO, **changes)
            model = lrcore.compress(dense, recipe)
        if "4 bits" in title:
            model = lrcore.quantize(model, 4)
        yield title, model


class Race:
    """The dense model in each target, measured alternately with other models."""

    def __init__(self) -> None:
        self.dense: dict[str, Runner] = {}

    def speed(self, target: str, runner: Runner, ids: Ids) -> float:
        """Return tokens per second relative to the dense model, by medians.

        The first model in a target is the dense model.
        """
        pair = (self.dense.setdefault(target, runner), runner)
        turns = [[_seconds(model, ids) for model in pair] for _ in range(TURNS)]
        dense, compressed = (statistics.median(times) for times in zip(*turns, strict=True))
        return dense / compressed


def cell(model: lrcore.LoadedModel, target: str, race: Race | None = None) -> Cell:
    """Export and measure a structure in a target; with a race, time it, too."""
    prompts, sentence = questions(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        try:
            runner = TARGETS[target](model, path)
        except lrcore.InputError as error:
            return Cell(why=str(error))
        answers = [runner.greedy(ids, TOKENS) for ids in prompts]
        speed = None if race is None else race.speed(target, runner, prompts[0])
        return held_against(model, path, answers, runner.perplexity(sentence), speed)


def questions(model: lrcore.LoadedModel) -> tuple[list[Ids], Ids]:
    """Return the tokens of each prompt, and of the sentence."""
    prompts = [list(model.tokenizer(text).input_ids) for text in PROMPTS]
    return prompts, list(model.tokenizer(SENTENCE).input_ids)


def held_against(
    model: lrcore.LoadedModel,
    path: Path,
    answers: list[Ids],
    perplexity: float,
    speed: float | None,
) -> Cell:
    """Compare an export with the model.

    answers: greedy tokens of the export after each prompt. perplexity: of the sentence.
    """
    local, (prompts, sentence) = Here(model.network), questions(model)
    expected = [local.greedy(ids, TOKENS) for ids in prompts]
    matches = [
        a == b for x, y in zip(answers, expected, strict=True) for a, b in zip(x, y, strict=True)
    ]
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    change = perplexity / local.perplexity(sentence) - 1
    return Cell("", (sum(matches), len(matches)), change, size, speed)


def _seconds(runner: Runner, ids: Ids) -> float:
    start = time.perf_counter()
    runner.greedy(ids, LONG)
    return time.perf_counter() - start


# ---- the page


def section(name: str, cells: dict[str, dict[str, Cell]]) -> str:
    """Return the table of a model. cells: by structure, then by target."""
    rows = []
    for structure, by_target in cells.items():
        rows += [[structure, f"`{target}`", *columns(cell)] for target, cell in by_target.items()]
    header = ["structure", "target", "matching tokens", "change of perplexity", "MB"]
    header.append("relative tokens/s")
    words = f"**{name}** in float32 with {RATIO:.0%} removed, on {machine()}."
    return f"{words}\n\n{table(header, rows)}"


def columns(cell: Cell) -> list[str]:
    if cell.why:
        return ["refused", "–", "–", "–"]
    same, count = cell.same
    speed = "–" if cell.speed is None else f"{cell.speed:.2f}"
    tokens = "all" if same == count else f"{same} of {count}"
    return [tokens, f"{cell.perplexity:+.2%}", f"{cell.bytes / 1e6:.1f}", speed]


def targets_here() -> Sequence[str]:
    """Return the targets that can be tested on this machine."""
    try:
        import xllamacpp  # noqa: F401 (only to check that it is installed)
    except ImportError:
        log("llama.cpp is skipped: xllamacpp is not installed (pip install xllamacpp).")
        return [name for name in TARGETS if name != "llama.cpp"]
    return list(TARGETS)


def main() -> None:
    """Write a table per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS)
    for name in parser.parse_args().models:
        cells: dict[str, dict[str, Cell]] = {}
        race = Race()
        for structure, model in structures(name):
            cells[structure] = {target: cell(model, target, race) for target in targets_here()}
            log(f"{name}, {structure}: {cells[structure]}")
        write_section(f"where {name}", section(name, cells), PAGE)


if __name__ == "__main__":
    main()
