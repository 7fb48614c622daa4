"""What every structure becomes in every target: measured, and written to docs/serving.md.

    python scripts/where_it_runs.py [MODEL ...]        demo-llama and smollm2-135m by default

Each structure is exported to each target, loaded there without this package, and held against the
compressed model here: greedy tokens, perplexity, bytes on disk, tokens per second against the dense
model's in the same target, with which it takes turns. llama.cpp is left out where xllamacpp is not
installed. vLLM has a script of its own, scripts/vllm_models.py.
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

from bench.page import machine, note, table, write_section  # noqa: E402 (after the path)

import lrcore  # noqa: E402 (after the path)

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
    """What became of a structure in a target. why: the sentence of a refusal, with nothing else.

    same: how many of the greedy tokens are those of the model here, of how many. perplexity: its
    relative change. bytes: on disk. speed: tokens per second, of the dense model's.
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
        given = torch.tensor([ids])
        found = self.network.generate(
            given,
            attention_mask=torch.ones_like(given),
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        return found[0, len(ids) :].tolist()

    @torch.inference_mode()
    def perplexity(self, ids: Ids) -> float:
        logs = self.network(torch.tensor([ids])).logits[0].log_softmax(-1)
        taken = logs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        return math.exp(-float(taken.mean()))


class InLlamaCpp:
    """A GGUF file in llama.cpp."""

    def __init__(self, path: Path, vocabulary: int) -> None:
        sys.path.append(str(ROOT / "tests"))
        from llama_cpp import LlamaCpp

        self.file, self.vocabulary = LlamaCpp(path), vocabulary

    def greedy(self, ids: Ids, count: int) -> Ids:
        said, _ = self.file.complete(ids, count, ends=False)
        return [one["id"] for one in said]

    def perplexity(self, ids: Ids) -> float:
        return float(self.file.perplexity(ids, self.vocabulary))


# ---- targets: export to a folder, and load what was written without this package


def in_transformers(model: lrcore.LoadedModel, place: Path) -> Runner:
    lrcore.export(model, place)
    return loaded(place, trust_remote_code=True)


def in_stock(model: lrcore.LoadedModel, place: Path) -> Runner:
    lrcore.export(model, place, stock=True)
    return loaded(place)


def in_mla(model: lrcore.LoadedModel, place: Path) -> Runner:
    lrcore.export_mla(model, place)
    return loaded(place)


def in_llama_cpp(model: lrcore.LoadedModel, place: Path) -> Runner:
    place.mkdir()
    lrcore.export_gguf(model, place / "model.gguf", "f32")
    return InLlamaCpp(place / "model.gguf", model.network.config.vocab_size)


def loaded(folder: Path, **how: Any) -> Here:
    """A folder, by transformers alone, in float32."""
    from transformers import AutoModelForCausalLM

    return Here(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how).eval())


TARGETS: dict[str, Callable[[lrcore.LoadedModel, Path], Runner]] = {
    "transformers": in_transformers,
    "transformers-stock": in_stock,
    "llama.cpp": in_llama_cpp,
    "mla": in_mla,
}


# ---- measuring


def structures(
    name: str, samples: int = 32, only: Collection[str] = (), seq_len: int = 256
) -> Iterator[tuple[str, lrcore.LoadedModel]]:
    """The models to export, one after the other. only: titles, where not all are wanted."""
    dense = lrcore.load(name)
    for title, changes in STRUCTURES.items():
        if only and title not in only:
            continue
        model = dense
        if changes is not None:
            recipe = lrcore.Recipe(name, samples=samples, seq_len=seq_len, ratio=RATIO, **changes)
            model = lrcore.compress(dense, recipe)
        if "4 bits" in title:
            model = lrcore.quantise(model, 4)
        yield title, model


class Race:
    """The dense model in every target, with which the others take turns."""

    def __init__(self) -> None:
        self.dense: dict[str, Runner] = {}

    def speed(self, target: str, there: Runner, ids: Ids) -> float:
        """Tokens per second, of the dense model's: medians of their turns. The first that runs in
        a target is the dense model.
        """
        pair = (self.dense.setdefault(target, there), there)
        turns = [[_seconds(one, ids) for one in pair] for _ in range(TURNS)]
        dense, own = (statistics.median(times) for times in zip(*turns, strict=True))
        return dense / own


def cell(model: lrcore.LoadedModel, target: str, race: Race | None = None) -> Cell:
    """One structure in one target; timed where there is a race."""
    prompts, sentence = questions(model)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "out"
        try:
            there = TARGETS[target](model, place)
        except lrcore.InputError as error:
            return Cell(why=str(error))
        found = [there.greedy(ids, TOKENS) for ids in prompts]
        speed = None if race is None else race.speed(target, there, prompts[0])
        return held_against(model, place, found, there.perplexity(sentence), speed)


def questions(model: lrcore.LoadedModel) -> tuple[list[Ids], Ids]:
    """The tokens of every prompt, and of the sentence."""
    prompts = [list(model.tokenizer(text).input_ids) for text in PROMPTS]
    return prompts, list(model.tokenizer(SENTENCE).input_ids)


def held_against(
    model: lrcore.LoadedModel,
    place: Path,
    found: list[Ids],
    perplexity: float,
    speed: float | None,
) -> Cell:
    """The cell of an export in `place`, by what it gave elsewhere and what the model gives here.

    found: greedy tokens after every prompt. perplexity: of the sentence.
    """
    here, (prompts, sentence) = Here(model.network), questions(model)
    own = [here.greedy(ids, TOKENS) for ids in prompts]
    alike = [a == b for x, y in zip(found, own, strict=True) for a, b in zip(x, y, strict=True)]
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    change = perplexity / here.perplexity(sentence) - 1
    return Cell("", (sum(alike), len(alike)), change, size, speed)


def _seconds(there: Runner, ids: Ids) -> float:
    began = time.perf_counter()
    there.greedy(ids, LONG)
    return time.perf_counter() - began


# ---- the page


def section(name: str, cells: dict[str, dict[str, Cell]]) -> str:
    """cells: by structure, then by target."""
    rows = []
    for structure, own in cells.items():
        rows += [[structure, f"`{target}`", *shown(one)] for target, one in own.items()]
    header = ["structure", "target", "same tokens", "perplexity", "MB", "tokens/s, of the dense"]
    words = (
        f"**{name}**, float32, {RATIO:.0%} removed; tokens: {TOKENS} greedy ones after each of "
        f"{len(PROMPTS)} prompts; perplexity of one sentence, its change; {machine()}."
    )
    return f"{words}\n\n{table(header, rows)}"


def shown(one: Cell) -> list[str]:
    if one.why:
        return ["refused", "–", "–", "–"]
    same, count = one.same
    speed = "–" if one.speed is None else f"{one.speed:.2f}"
    tokens = "all" if same == count else f"{same} of {count}"
    return [tokens, f"{one.perplexity:+.2%}", f"{one.bytes / 1e6:.1f}", speed]


def targets_here() -> Sequence[str]:
    """Those that can be tried on this machine."""
    try:
        import xllamacpp  # noqa: F401 (whether it is there)
    except ImportError:
        note("llama.cpp is left out: xllamacpp is not installed (pip install xllamacpp).")
        return [name for name in TARGETS if name != "llama.cpp"]
    return list(TARGETS)


def main() -> None:
    """Read the arguments; write one table per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS)
    for name in parser.parse_args().models:
        cells: dict[str, dict[str, Cell]] = {}
        race = Race()
        for structure, model in structures(name):
            cells[structure] = {target: cell(model, target, race) for target in targets_here()}
            note(f"{name}, {structure}: {cells[structure]}")
        write_section(f"where {name}", section(name, cells), PAGE)


if __name__ == "__main__":
    main()
