"""The model card of an export: base model, compression and measurements."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..layers.account import SizeAndCost
from ..models.gguf_import import model_note
from ..models.weights import read_json
from ..recipes.history import (
    Compressed,
    ExpertsPruned,
    Healed,
    LayersDropped,
    Quantized,
    SharedBases,
    Sliced,
    Sparsified,
    Step,
    last_step,
)
from ..recipes.provenance import Provenance
from ..system.as_json import json_text
from ..system.files import MARK
from .paths import public_provenance, strip_paths

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_LICENSE_FIELDS = ("license", "license_name", "license_link")


@dataclass(frozen=True)
class ExportUsage:
    """Instructions for an export.

    standard: it loads without custom code. loader: class of transformers. task: pipeline tag of the
    hub. lora: modules that LoRA can train, as `target_modules` of PEFT. notes: changes of the model
    by the export. note: remark of the model; "" for that in its folder.
    """

    standard: bool = False
    loader: str = "AutoModelForCausalLM"
    task: str = "text-generation"
    lora: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    note: str = ""


def model_card(
    title: str,
    folder: str | Path,
    provenance: Provenance,
    parameters: int,
    results: Sequence[Mapping[str, Any]] = (),
    usage: ExportUsage = ExportUsage(),
) -> str:
    """Return the README.md of an export with metadata for the hub.

    The license is that of the base model.

    folder: the model's files. results: evaluations as from `Evaluation.to_dict`; the metadata omits
    results without a finite perplexity. Local paths are replaced by names of files and folders.
    """
    provenance, results = public_provenance(provenance), strip_paths(results)
    base = title if provenance.base is None else provenance.base.name
    head: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": usage.task,
        "tags": ["low-rank", "compressed"],
    }
    if _HUB_ID.fullmatch(base):
        head["base_model"] = base
    head |= license_fields(folder)
    entries = [_entry(result) for result in results if result.get("perplexity") is not None]
    if entries:
        head["model-index"] = [{"name": title, "results": entries}]
    metadata = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    sections = [
        f"# {title}\n\n{_summary(base, parameters, provenance.history)}",
        f"Note: {note}." if (note := usage.note or model_note(Path(folder))) else "",
        _changes(usage.notes),
        _usage(usage),
        "" if provenance.account is None else _account(provenance.account, bool(usage.notes)),
        _measurements(results),
        _compression(provenance.history),
    ]
    return f"---\n{metadata}---\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def _summary(base: str, parameters: int, history: Sequence[Step]) -> str:
    """Describe the model: a sentence about its size, and a sentence per step."""
    compressed = last_step(history, Compressed)
    after = "." if compressed is None else " after low-rank compression."
    sentences = [f"`{base}` with {parameters:,} parameters{after}"]
    if compressed is not None and compressed.fixes_grids:
        distinct = {row.bits for row in compressed.ranks if row.bits}
        *others, least = map(str, sorted(distinct, reverse=True))
        listed = f"{', '.join(others)} and {least}" if others else least
        sentences.append(f"Matrices of its decoder layers are quantized to {listed} bits (GPTQ).")
    if quantized := last_step(history, Quantized):
        sentences.append(
            f"The matrices of its decoder layers are quantized to {quantized.bits} bits in groups "
            f"of {quantized.group} (quantizer {quantized.method})."
        )
    if sparse := last_step(history, Sparsified):
        sentences.append(
            f"{_density(sparse)} in its decoder layers remain, selected by {sparse.criterion}. "
            "Products use dense matrices, so sparsity does not make CPUs faster."
        )
    if shared := last_step(history, SharedBases):
        sentences.append(
            f"{shared.group} neighboring decoder layers share a basis for each of their query, "
            "key, value, gate and up projections (Basis Sharing)."
        )
    for step in history:
        if isinstance(step, LayersDropped):
            removed = ", ".join(map(str, sorted(step.gone)))
            sentences.append(
                f"Of {step.of} decoder layers, the layers {removed} (counted from 0) were removed, "
                f"selected by {step.by}."
            )
        if isinstance(step, ExpertsPruned):
            merged = f" ({step.merged} merged into remaining experts)" if step.merged else ""
            sentences.append(
                f"In each layer, {step.experts} of {step.of} routed experts were removed{merged}, "
                f"selected by {step.by}."
            )
    if sliced := last_step(history, Sliced):
        sentences.append(
            f"The width of its residual stream is {sliced.width} instead of {sliced.of} (SliceGPT, "
            f"rotations: {sliced.rotations})."
        )
    return " ".join(sentences)


def _density(sparse: Sparsified) -> str:
    if sparse.pattern == "2:4":
        return "Two of every four weights (2:4)"
    return f"{sparse.kept:.0%} of the weights"


def license_fields(folder: str | Path) -> dict[str, str]:
    """Return the license fields in the card of a model folder, or in a checkpoint's lrcore.json."""
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
    if not isinstance(fields, dict):
        return {}
    return {name: fields[name] for name in _LICENSE_FIELDS if name in fields}


def _entry(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a measurement in the format of the hub's `model-index`."""
    protocol = result["protocol"]
    data = str(protocol.get("source") or protocol.get("data") or "text")
    return {
        "task": {"type": "text-generation"},
        "dataset": {"name": data, "type": data},
        "metrics": [{"type": "perplexity", "value": round(float(result["perplexity"]), 4)}],
    }


def _usage(usage: ExportUsage) -> str:
    loader = usage.loader
    trust = "" if usage.standard else ", trust_remote_code=True"
    requirement = (
        "It needs no code beyond transformers."
        if usage.standard
        else (
            "The modeling file in this folder subclasses the base architecture and replaces the "
            "modules that config.json lists."
        )
    )
    return (
        f"## Use\n\n```python\nfrom transformers import {loader}, AutoTokenizer\n\n"
        f"model = {loader}.from_pretrained(folder{trust})\ntokenizer = "
        f"AutoTokenizer.from_pretrained(folder{trust})\n```\n\n{requirement} "
        f"{_lora(usage.lora)}"
    )


def _changes(notes: Sequence[str]) -> str:
    """Return the section about changes of the model by the export."""
    lines = "\n".join(f"- {note}" for note in notes)
    intro = "The outputs of the model are those of the compressed model. The export changed:"
    return f"## What this export changed\n\n{intro}\n\n{lines}" if notes else ""


def _lora(names: Sequence[str]) -> str:
    if not names:
        return "PEFT cannot train its layers, since their matrices are quantized."
    listed = json_text(names[0] if len(names) == 1 else list(names))
    return (
        f"LoRA (PEFT): `target_modules={listed}`; names of the dense model, such as `q_proj`, "
        "stand for the parts of a factored matrix."
    )


def _account(account: SizeAndCost, is_changed: bool) -> str:
    """Return the section that compares size and cost with the dense model.

    is_changed: whether the export has another size than the compressed model of the account.
    """
    column = "compressed model, before this export" if is_changed else "this model"
    names = {
        "parameters": "parameters",
        "megabytes": "MB",
        "kv_bytes_per_token": "KV cache, bytes per token",
        **({"state_bytes": "states, bytes per sequence"} if account.dense.state_bytes else {}),
        "flops_per_token": "FLOPs per token",
    }
    lines = "\n".join(
        f"| {label} | {_number(getattr(account.model, name))} | "
        f"{_number(getattr(account.dense, name))} |"
        for name, label in names.items()
    )
    return f"## Size\n\n| | {column} | dense |\n|---|---:|---:|\n{lines}"


def _number(value: float) -> str:
    return f"{value:,.2f}" if isinstance(value, float) and value < 1e4 else f"{value:,.0f}"


def _compression(history: Sequence[Step]) -> str:
    """Return the section about recipe, ranks, calibration and healing."""
    compressed, healed = last_step(history, Compressed), last_step(history, Healed)
    if compressed is None and healed is None:
        return ""
    text = "## How it was made" + ("" if compressed is None else _ranks(compressed))
    if healed is not None:
        fields = {
            name: value
            for name, value in healed.fields_dict().items()
            if not isinstance(value, dict | list) and value is not None
        }
        text += "\n\n### Healing\n\nTrained against the dense model.\n\n" + _pairs(fields)
    return text


def _ranks(compressed: Compressed) -> str:
    recipe = yaml.safe_dump(compressed.recipe.to_dict(), sort_keys=False, allow_unicode=True)
    text = f"\n\n```yaml\n{recipe}```"
    if compressed.ranks:
        lines = "\n".join(
            f"| {row.layer} | {row.component} | {row.rank} | {row.full} | {row.bits or '–'} |"
            for row in compressed.ranks
        )
        header = "| layer | component | rank | of | bits |\n|---|---|---|---|---|"
        text += f"\n\n### Ranks\n\n{header}\n{lines}"
    if compressed.calibration:
        text += "\n\n### Calibration\n\n" + _pairs(compressed.calibration)
    return text


def _measurements(results: Sequence[Mapping[str, Any]]) -> str:
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
