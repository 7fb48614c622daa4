"""The model card of an export: what it came from, how it was made, and what was measured."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..account import SizeAndCost
from ..as_json import json_text
from ..files import MARK
from ..history import (
    Compressed,
    ExpertsPruned,
    Healed,
    Quantised,
    SharedBases,
    Shortened,
    Sliced,
    Sparsified,
    Step,
    last_step,
)
from ..models.gguf import note_of
from ..models.weights import read_json
from ..provenance import Provenance
from .paths import public_provenance, without_paths

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
TASKS = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForImageTextToText": "image-text-to-text",
}
_LICENCE = ("license", "license_name", "license_link")


@dataclass(frozen=True)
class Usage:
    """How an export is loaded: with no code of ours (stock), by which class of transformers; the
    modules of its layers that LoRA can train, by the names that PEFT takes; and what had to be done
    to the model, a clause each.
    """

    stock: bool = False
    loader: str = "AutoModelForCausalLM"
    lora: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def model_card(
    title: str,
    folder: str | Path,
    provenance: Provenance,
    parameters: int,
    results: Sequence[Mapping[str, Any]] = (),
    usage: Usage = Usage(),
) -> str:
    """README.md of an export, with the hub's metadata.

    The licence is that of the base model's card, and absent where that names none; a note is that
    of the base, such as that it was dequantised.

    folder: where the model's files are. provenance: how it came to be. results: evaluations as
    `Evaluation.to_dict` gives them; those without a finite perplexity are left out of the metadata.
    Paths of this machine become the names of files and folders.
    """
    provenance, results = public_provenance(provenance), without_paths(results)
    base = title if provenance.base is None else provenance.base.name
    head: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": TASKS[usage.loader],
        "tags": ["low-rank", "compressed"],
    }
    if _HUB_ID.fullmatch(base):
        head["base_model"] = base
    head |= licence(folder)
    entries = [_entry(result) for result in results if result.get("perplexity") is not None]
    if entries:
        head["model-index"] = [{"name": title, "results": entries}]
    meta = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    parts = [
        f"# {title}\n\n{_opening(base, parameters, provenance.history)}",
        f"Note: {note}." if (note := note_of(Path(folder))) else "",
        _changed(usage.notes),
        _usage(usage),
        "" if provenance.account is None else _account(provenance.account),
        _measured(results),
        _making(provenance.history),
    ]
    return f"---\n{meta}---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def _opening(base: str, parameters: int, history: Sequence[Step]) -> str:
    """What the model is, in a sentence or one for every step that changed it."""
    compressed = last_step(history, Compressed) is not None
    after = " after low-rank compression." if compressed else "."
    sentences = [f"`{base}` with {parameters:,} parameters{after}"]
    if quantised := last_step(history, Quantised):
        sentences.append(
            f"The matrices of its decoder layers are quantised to {quantised.bits} bits in groups "
            f"of {quantised.group} ({quantised.method.upper()})."
        )
    if sparse := last_step(history, Sparsified):
        sentences.append(
            f"{_how_many(sparse)} of its decoder layers are kept, by {sparse.criterion}; they are "
            "dense during a product, so that no CPU is faster by it."
        )
    if shared := last_step(history, SharedBases):
        sentences.append(
            f"{shared.group} neighbouring decoder layers share a basis for each of their query, "
            "key, value, gate and up projections (Basis Sharing)."
        )
    for step in history:
        if isinstance(step, Shortened):
            gone = ", ".join(map(str, sorted(step.gone)))
            sentences.append(
                f"It lacks the decoder layers {gone} of {step.of}, counted from 0, chosen by "
                f"{step.by}."
            )
        if isinstance(step, ExpertsPruned):
            merged = f", {step.merged} of them merged into others" if step.merged else ""
            sentences.append(
                f"Every layer has lost {step.experts} of {step.of} routed experts{merged}, chosen "
                f"by {step.by}."
            )
    if sliced := last_step(history, Sliced):
        sentences.append(
            f"Its residual stream is {sliced.width} wide instead of {sliced.of} (SliceGPT, "
            f"rotations: {sliced.rotations})."
        )
    return " ".join(sentences)


def _how_many(sparse: Sparsified) -> str:
    if sparse.pattern == "2:4":
        return "Two of every four weights (2:4)"
    return f"Of the weights {sparse.kept:.0%}"


def licence(folder: str | Path) -> dict[str, str]:
    """The licence fields of the model that a folder holds: of its card, or of the base model's
    as our checkpoints keep them.
    """
    card, mark = Path(folder) / "README.md", Path(folder) / MARK
    if mark.is_file():
        fields: dict[str, str] = read_json(mark).get("licence", {})
        return fields
    match = (
        re.match(r"---\n(.*?)\n---", card.read_text(encoding="utf-8"), re.DOTALL)
        if card.is_file()
        else None
    )
    try:
        fields = yaml.safe_load(match[1]) if match else {}
    except yaml.YAMLError:
        fields = {}
    return (
        {name: fields[name] for name in _LICENCE if name in fields}
        if isinstance(fields, dict)
        else {}
    )


def _entry(result: Mapping[str, Any]) -> dict[str, Any]:
    """One measurement as the hub's `model-index` wants it."""
    protocol = result["protocol"]
    data = str(protocol.get("source") or protocol.get("data") or "text")
    return {
        "task": {"type": "text-generation"},
        "dataset": {"name": data, "type": data},
        "metrics": [{"type": "perplexity", "value": round(float(result["perplexity"]), 4)}],
    }


def _usage(usage: Usage) -> str:
    loader = usage.loader
    trust = "" if usage.stock else ", trust_remote_code=True"
    why = (
        "It needs no code beyond transformers."
        if usage.stock
        else (
            "The modeling file in this folder subclasses the base architecture and exchanges the "
            "modules that config.json names."
        )
    )
    return (
        f"## Use\n\n```python\nfrom transformers import {loader}, AutoTokenizer\n\n"
        f"model = {loader}.from_pretrained(folder{trust})\ntokenizer = "
        f"AutoTokenizer.from_pretrained(folder{trust})\n```\n\n{why} "
        f"{_lora(usage.lora)}"
    )


def _changed(notes: Sequence[str]) -> str:
    """What the export had to do, and what size and cache remain."""
    lines = "\n".join(f"- {note}" for note in notes)
    words = "The model computes the same as the one that it was made of:"
    return f"## What this export changed\n\n{words}\n\n{lines}" if notes else ""


def _lora(names: Sequence[str]) -> str:
    if not names:
        return "PEFT finds nothing to train in its layers: their matrices are quantised."
    listed = json_text(names[0] if len(names) == 1 else list(names))
    return (
        f"LoRA (PEFT): `target_modules={listed}`; names of the dense model, such as `q_proj`, "
        "stand for the parts of a factored matrix."
    )


def _account(account: SizeAndCost) -> str:
    """What the model weighs and costs beside its dense base."""
    names = {
        "parameters": "parameters",
        "megabytes": "MB",
        "kv_bytes_per_token": "KV cache, bytes per token",
        "flops_per_token": "FLOPs per token",
    }
    lines = "\n".join(
        f"| {label} | {_number(getattr(account.model, name))} | "
        f"{_number(getattr(account.dense, name))} |"
        for name, label in names.items()
    )
    return f"## Size\n\n| | this model | dense |\n|---|---:|---:|\n{lines}"


def _number(value: float) -> str:
    return f"{value:,.2f}" if isinstance(value, float) and value < 1e4 else f"{value:,.0f}"


def _making(history: Sequence[Step]) -> str:
    """Recipe, ranks and calibration of a compressed model, and healing."""
    compressed, healed = last_step(history, Compressed), last_step(history, Healed)
    if compressed is None and healed is None:
        return ""
    text = "## How it was made" + ("" if compressed is None else _by_ranks(compressed))
    if healed is not None:
        kept = {
            name: value
            for name, value in healed.fields_dict().items()
            if not isinstance(value, dict | list) and value is not None
        }
        text += "\n\n### Healing\n\nTrained against the dense model.\n\n" + _pairs(kept)
    return text


def _by_ranks(compressed: Compressed) -> str:
    recipe = yaml.safe_dump(compressed.recipe.to_dict(), sort_keys=False, allow_unicode=True)
    text = f"\n\n```yaml\n{recipe}```"
    if compressed.ranks:
        lines = "\n".join(
            f"| {row.layer} | {row.component} | {row.rank} | {row.full} |"
            for row in compressed.ranks
        )
        text += f"\n\n### Ranks\n\n| layer | component | rank | of |\n|---|---|---|---|\n{lines}"
    if compressed.calibration:
        text += "\n\n### Calibration\n\n" + _pairs(compressed.calibration)
    return text


def _measured(results: Sequence[Mapping[str, Any]]) -> str:
    if not results:
        return ""
    parts = []
    for result in results:
        dense = (
            f", dense {result['dense_perplexity']:.4f}" if result.get("dense_perplexity") else ""
        )
        value = "not finite" if result.get("perplexity") is None else f"{result['perplexity']:.4f}"
        parts.append(
            f"Perplexity {value}{dense} over {result.get('tokens', '?')} predicted tokens.\n\n"
            + _pairs(result["protocol"])
        )
    return "## Measured\n\n" + "\n\n".join(parts)


def _pairs(values: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in values.items())
