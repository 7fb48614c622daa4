"""Whether compressed models are faster, not only smaller: prefill and decoding against the dense
model, in turns, beside the ratio of their FLOPs. What was measured is kept below build, so that a
run goes on where it ended.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lrcore
from lrcore.models.architectures import text_config

from .made_up import SHAPES, write_model, write_text
from .page import ROOT, machine, note, table, write_section

REAL, SHAPE = "smollm2-135m", "tinyllama-1.1b"
METHODS = {REAL: ("a3", "svd_llm", "modegpt", "latentllm", "fused"), SHAPE: ("a3", "svd_llm")}
RATIOS, BATCHES = (0.2, 0.4), (1, 8, 32)
PROMPT, NEW, ROUNDS = 128, 16, 3
SAMPLES, LENGTH, TEXTS = 8, 512, 500
KEPT = ROOT / "build" / "throughput.json"
HEADER = (
    "method",
    "removed",
    "batch",
    "FLOPs of a prefill, of the dense",
    "prefill, times the dense",
    "of what the FLOPs promise",
    "decoding, times the dense",
    "prefill, factors merged",
    "decoding, factors merged",
)


@dataclass(frozen=True)
class Cell:
    """flops: of a prefill, dense over compressed; prefill, decode: speed over the dense model's;
    merged_prefill, merged_decode: with factors merged where that decodes faster.
    """

    flops: float
    prefill: float
    decode: float
    merged_prefill: float
    merged_decode: float


def throughput(only: list[str]) -> None:
    """Measure the cells that are not there, and write the table of a model after each of them."""
    if only:
        return
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in METHODS:
        for key, cell in measured(name, known):
            known[key] = asdict(cell)
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(known, indent=1, allow_nan=False))
            write_section(f"throughput {name}", section(name, known))


def measured(name: str, known: dict[str, Any]) -> Iterator[tuple[str, Cell]]:
    """Every cell of a model that is not known, by its key."""
    lacking = [
        (method, ratio, batch)
        for method in METHODS[name]
        for ratio in RATIOS
        for batch in BATCHES
        if key_of(name, method, ratio, batch) not in known
    ]
    if not lacking:
        return
    model, recipe = subject(name)
    for method in dict.fromkeys(method for method, _, _ in lacking):
        chosen = recipe.with_(method=method)
        factors = lrcore.prepare(model, chosen)
        own = [(ratio, batch) for one, ratio, batch in lacking if one == method]
        for ratio in dict.fromkeys(ratio for ratio, _ in own):
            small = lrcore.compress(model, chosen.with_(ratio=ratio), factors)
            for batch in [batch for one, batch in own if one == ratio]:
                cell = cell_of(model, small, batch)
                note(f"throughput {name} {method} {ratio} {batch}: {cell}")
                yield key_of(name, method, ratio, batch), cell


def cell_of(model: lrcore.LoadedModel, small: lrcore.LoadedModel, batch: int) -> Cell:
    """The dense and the compressed model in turns, with its factors merged where it has some."""
    merged = lrcore.merge_factors(small, batch)  # the same where there is nothing to merge
    models = [model, small] if merged is small else [model, small, merged]
    dense, *ours = lrcore.measure_speed(models, prompt=PROMPT, new=NEW, rounds=ROUNDS, batch=batch)
    ratios = [(one.prefill / dense.prefill, one.decode / dense.decode) for one in ours]
    return Cell(prefill_flops(model) / prefill_flops(small), *ratios[0], *ratios[-1])


def key_of(name: str, method: str, ratio: float, batch: int) -> str:
    return f"{name} {method} {ratio} {batch}"


def subject(name: str) -> tuple[lrcore.LoadedModel, lrcore.Recipe]:
    """The model, and what it is calibrated by: a built-in one, or one of a shape, in bfloat16."""
    settings = {"samples": SAMPLES, "seq_len": LENGTH}
    if name not in SHAPES:
        return lrcore.load(name), lrcore.Recipe(model=name, data="stories", **settings)
    folder, text = made(ROOT / "build" / "throughput" / name, name)
    model = lrcore.load(folder, dtype="auto")
    return model, lrcore.Recipe(model=str(folder), data=str(text), dtype="auto", **settings)


def made(place: Path, shape: str) -> tuple[Path, Path]:
    """The folder of a made-up model and its text, written where they are not there yet."""
    folder, text = place / "model", place / "text.jsonl"
    if not (folder / "config.json").exists():
        write_model(folder, SHAPES[shape])
    if not text.exists():
        write_text(text, TEXTS)
    return folder, text


def prefill_flops(model: lrcore.LoadedModel) -> float:
    """Of a prompt, with the output head at its last token alone."""
    config = text_config(model.network)
    head = 2 * config.hidden_size * config.vocab_size
    return PROMPT * lrcore.measure_cost(model, PROMPT).flops_prefill - (PROMPT - 1) * head


def section(name: str, known: dict[str, Any]) -> str:
    """The table of a model as far as it is measured, and how many cells reach what they should."""
    cells: dict[tuple[str, float, int], Cell] = {
        (method, ratio, batch): Cell(**known[key_of(name, method, ratio, batch)])
        for method in METHODS[name]
        for ratio in RATIOS
        for batch in BATCHES
        if key_of(name, method, ratio, batch) in known
    }
    rows = [
        [
            method,
            f"{ratio:.0%}",
            batch,
            f"{1 / cell.flops:.2f}",
            f"{cell.prefill:.2f}",
            f"{cell.prefill / cell.flops:.2f}",
            f"{cell.decode:.2f}",
            f"{cell.merged_prefill:.2f}",
            f"{cell.merged_decode:.2f}",
        ]
        for (method, ratio, batch), cell in cells.items()
    ]
    reach = _counted(cells, lambda cell: cell.prefill >= 0.95 * cell.flops)
    slower = _counted(cells, lambda cell: min(cell.prefill, cell.decode) < 1)
    merged = _counted(cells, lambda cell: min(cell.merged_prefill, cell.merged_decode) < 1)
    kind = "bfloat16" if name in SHAPES else "float32"
    words = (
        f"**{name}**, {kind}: prompts of {PROMPT} tokens, {NEW} decoded after each; medians of "
        f"{ROUNDS} rounds, dense and compressed in turn; {machine()}. At least 0.95 of what the "
        f"FLOPs promise in prefill: {reach} of {len(cells)} cells; slower than dense in prefill or "
        f"decoding: {slower}; with factors merged where this decodes faster (`merge_factors`): "
        f"{merged}."
    )
    return f"{words}\n\n{table(list(HEADER), rows)}"


def _counted(cells: dict[Any, Cell], holds: Callable[[Cell], bool]) -> int:
    return sum(map(holds, cells.values()))
