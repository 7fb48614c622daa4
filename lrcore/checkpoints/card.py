"""The model card of an export: what it came from, how it was made, and what was measured."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..models.weights import MARK, read_json

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
TASKS = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForImageTextToText": "image-text-to-text",
}
_LICENCE = ("license", "license_name", "license_link")


def model_card(
    title: str,
    folder: str | Path,
    report: Mapping[str, Any] | None,
    parameters: int,
    results: Sequence[Mapping[str, Any]] = (),
    stock: bool = False,
    loader: str = "AutoModelForCausalLM",
) -> str:
    """README.md of an export, with the hub's metadata.

    The licence is that of the base model's card, and absent where that names none.

    folder: where the model's files are. report: how it came to be, None for a dense one. results:
    evaluations as `Evaluation.to_dict` gives them; those without a finite perplexity are left out
    of the metadata. stock: whether the export needs no code. loader:
    the class of transformers that loads it.
    """
    report = report or {}
    base = str(report.get("base", title))
    head: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": TASKS[loader],
        "tags": ["low-rank", "compressed"],
    }
    if _HUB_ID.fullmatch(base):
        head["base_model"] = base
    head |= licence(folder)
    entries = [_entry(result) for result in results if result.get("perplexity") is not None]
    if entries:
        head["model-index"] = [{"name": title, "results": entries}]
    meta = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    opening = f"# {title}\n\n`{base}` with {parameters:,} parameters" + (
        " after low-rank compression." if "recipe" in report else "."
    )
    if codes := report.get("quantised"):
        opening += f" The matrices of its decoder layers are codes of {codes['bits']} bits in groups of {codes['group']} (HQQ)."
    if shortened := report.get("shortened"):
        gone = ", ".join(map(str, sorted(shortened["gone"])))
        opening += f" It lacks the decoder layers {gone} of {shortened['of']}, counted from 0, chosen by {shortened['by']}."
    if sliced := report.get("sliced"):
        opening += f" Its residual stream is {sliced['width']} wide instead of {sliced['of']} (SliceGPT, rotations: {sliced['rotations']})."
    parts = [
        opening,
        _usage(stock, loader),
        _account(report.get("summary", {})),
        _measured(results),
        _making(report),
    ]
    return f"---\n{meta}---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def licence(folder: str | Path) -> dict[str, str]:
    """The licence fields of the model that a folder holds: of its card, or of the base model's
    as our checkpoints keep them.
    """
    card, mark = Path(folder) / "README.md", Path(folder) / MARK
    if mark.is_file():
        return read_json(mark).get("licence", {})
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
    data = str(result["protocol"].get("data", "text"))
    return {
        "task": {"type": "text-generation"},
        "dataset": {"name": data, "type": data},
        "metrics": [{"type": "perplexity", "value": round(float(result["perplexity"]), 4)}],
    }


def _usage(stock: bool, loader: str) -> str:
    trust = "" if stock else ", trust_remote_code=True"
    why = (
        "It needs no code beyond transformers."
        if stock
        else (
            "The modeling file in this folder subclasses the base architecture and exchanges the "
            "modules that config.json names."
        )
    )
    return (
        f"## Use\n\n```python\nfrom transformers import {loader}, AutoTokenizer\n\n"
        f"model = {loader}.from_pretrained(folder{trust})\ntokenizer = "
        f"AutoTokenizer.from_pretrained(folder)\n```\n\n{why} "
        'LoRA (PEFT) reaches factored matrices by `target_modules="all-linear"`.'
    )


def _account(summary: Mapping[str, Any]) -> str:
    """What the model weighs beside its dense base, as far as the account of its plan says."""
    names = {
        "parameters": "parameters",
        "megabytes": "MB",
        "kv_bytes_per_token": "KV cache, bytes per token",
        "flops_per_token": "FLOPs per token",
    }
    rows = [
        (words, summary[name], summary[f"dense_{name}"])
        for name, words in names.items()
        if f"dense_{name}" in summary
    ]
    lines = "\n".join(
        f"| {words} | {_number(now)} | {_number(before)} |" for words, now, before in rows
    )
    return f"## Size\n\n| | this model | dense |\n|---|---:|---:|\n{lines}" if rows else ""


def _number(value: float) -> str:
    return f"{value:,.2f}" if isinstance(value, float) and value < 1e4 else f"{value:,.0f}"


def _making(report: Mapping[str, Any]) -> str:
    if "recipe" not in report:
        return ""
    recipe = yaml.safe_dump(report["recipe"], sort_keys=False, allow_unicode=True)
    text = f"## How it was made\n\n```yaml\n{recipe}```"
    if report.get("ranks"):
        lines = "\n".join(
            f"| {row['layer']} | {row['component']} | {row['rank']} | {row['full']} |"
            for row in report["ranks"]
        )
        text += f"\n\n### Ranks\n\n| layer | component | rank | of |\n|---|---|---|---|\n{lines}"
    if report.get("calibration"):
        text += "\n\n### Calibration\n\n" + _pairs(report["calibration"])
    if healing := report.get("healing"):
        kept = {
            name: value
            for name, value in healing.items()
            if not isinstance(value, dict | list) and value is not None
        }
        text += "\n\n### Healing\n\nTrained against the dense model.\n\n" + _pairs(kept)
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
