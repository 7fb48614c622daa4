"""Comparison of several models with the first: quality, distance and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..models.load import LoadedModel
from ..system.errors import InputError
from ..system.progress import Progress
from . import report
from .compare import compare
from .contributions import contributions
from .cost import measure_cost, measure_speed
from .evaluation_settings import EvaluationSettings
from .local_errors import local_errors
from .protocols import use_held_out

AXES = {
    "parameters": "parameters",
    "kv_bytes_per_token": "KV bytes per token",
    "flops_decode": "FLOPs per decoded token",
    "seconds_per_token": "seconds per decoded token",
}
QUALITY = (
    "name",
    "perplexity",
    "delta_nll",
    "delta_error",
    "kl",
    "top1",
    "bits_per_byte",
    "word_perplexity",
    "nonfinite",
)
# Names of columns in the report, which is read without the documentation
HEADINGS = {
    "delta_nll": "change of the loss, nats/token",
    "delta_error": "standard error of the change",
    "kl": "KL from the first model, nats/token",
    "top1": "share of equal most likely tokens",
    "bits_per_byte": "bits per byte",
    "word_perplexity": "perplexity per word",
    "nonfinite": "windows without a finite loss",
    "bytes_on_disk": "bytes on disk",
    "kv_bytes_per_token": "KV cache, bytes per token",
    "state_bytes": "state, bytes per sequence",
    "context": "tokens in the cache",
    "flops_prefill": "FLOPs per token of a prompt",
    "flops_decode": "FLOPs per decoded token",
    "flops_formula": "FLOPs per decoded token, by formula",
    "prefill_tokens_per_second": "prompt tokens per second",
    "decode_tokens_per_second": "decoded tokens per second",
    "peak_memory": "peak memory, bytes",
    "seconds_per_token": "seconds per decoded token",
    "parts": "compressed parts",
    "delta_perplexity": "change of perplexity",
    "component": "output",
    "error": "relative squared error",
    "predicted": "predicted from the spectrum",
}
# Cells of the tables of `local_errors` and `contributions` in the report
PARTS = {
    "qk": "QK",
    "ov": "OV",
    "mlp": "MLP",
    "qk + ov": "QK plus OV: sum of both rows",
    "qk, ov": "QK and OV together",
}
OUTPUTS = {
    "scores": "attention scores (QK)",
    "ov": "attention with the dense scores (OV)",
    "attention": "attention",
    "mlp": "MLP",
    "residual": "residual stream, with all layers before",
}
MAX_MODELS = 6
_SELF_COMPARISON = {"delta": 0.0, "delta_error": None, "kl": 0.0, "top1": 1.0}


def compare_models(
    models: Sequence[LoadedModel],
    settings: EvaluationSettings,
    speed: bool = False,
    local: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare models with the first model on the same tokens; returns plain values.

    "models": one row per model, the first compared with itself. delta_error is the standard error
    of delta_nll, None for fewer than two windows. "protocol": see `Evaluation`. With `speed`, the
    rows have tokens per second, measured in alternation. With `local`, "details" has the local
    errors and the contributions of the second and following models. Raises InputError like
    `compare`, and for fewer than two or more than `MAX_MODELS` models.
    """
    if not 2 <= len(models) <= MAX_MODELS:
        raise InputError(f"{len(models)} models cannot be compared; select two to {MAX_MODELS}.")
    dense, settings = models[0], use_held_out(models, settings)
    rows: list[dict[str, Any]] = []
    protocol: dict[str, Any] = {}
    for model in models[1:]:
        comparison = compare(dense, model, settings, progress=progress)
        is_calibration_text = comparison.small.protocol.get("on_calibration_text")
        protocol |= comparison.dense.protocol | (
            {"on_calibration_text": True} if is_calibration_text else {}
        )
        values = comparison.to_dict()
        if not rows:
            rows.append(_row(dense, values["dense"], _SELF_COMPARISON))
        rows.append(_row(model, values["small"], values))
    context = min(256, (dense.context or 257) - 1)
    for row, model in zip(rows, models, strict=True):
        row |= measure_cost(model, context).to_dict()
    if speed:
        for row, model_speed in zip(rows, measure_speed(models, progress=progress), strict=True):
            row |= {
                "prefill_tokens_per_second": model_speed.prefill,
                "decode_tokens_per_second": model_speed.decode,
                "peak_memory": model_speed.peak_memory,
                "seconds_per_token": 1 / model_speed.decode,
            }
    result: dict[str, Any] = {"models": rows, "protocol": protocol}
    if local:
        result["details"] = [_details(dense, model, settings, progress) for model in models[1:]]
    return result


def _row(
    model: LoadedModel, evaluation: Mapping[str, Any], distance: Mapping[str, Any]
) -> dict[str, Any]:
    copied = ("perplexity", "nll", "bits_per_byte", "word_perplexity", "tokens", "nonfinite")
    return {
        "name": model.name,
        **{name: evaluation[name] for name in copied},
        "delta_nll": distance["delta"],
        "delta_error": distance["delta_error"],
        "kl": distance["kl"],
        "top1": distance["top1"],
    }


def _details(
    dense: LoadedModel, small: LoadedModel, settings: EvaluationSettings, progress: Progress | None
) -> dict[str, Any]:
    short_settings = EvaluationSettings(
        settings.data, min(settings.samples or 8, 8), settings.seq_len
    )
    errors = local_errors(dense, small, short_settings, progress=progress)
    first_windows = replace(settings, sampling="first", seed=0, stride=None)
    parts = contributions(dense, small, first_windows, progress=progress)
    rows = errors.table().astype(object).where(lambda frame: frame.notna(), None).to_dict("records")
    return {
        "name": small.name,
        "local_errors": rows,
        "local_protocol": errors.protocol,
        "contributions": parts.rows,
    }


def comparison_page(
    result: dict[str, Any],
    title: str = "Models side by side",
    answers: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the result of `compare_models` as a self-contained HTML page.

    answers: rows of `answer_prompts`.
    """
    rows = result["models"]
    parts: list[report.Part] = [*report.answers(answers)]
    for key, name in AXES.items():
        points = [
            report.Point(r["name"], r["name"], r[key], r["perplexity"])
            for r in rows
            if r.get(key) and r["perplexity"]
        ]
        if points:
            heading = f"Perplexity against {name}"
            parts.append(report.scatter(heading, points, name, "perplexity"))
    quality_columns = {*QUALITY[1:], "nll", "tokens"}
    quality = _with_headings(rows, QUALITY)
    cost = _with_headings(rows, [name for name in rows[0] if name not in quality_columns])
    for details in result.get("details", ()):
        parts += _detail_tables(details)
    return report.page(
        title,
        report.table("Quality", quality),
        report.table("Cost", cost),
        *parts,
        report.fields_table("Protocol", result["protocol"]),
    )


def _detail_tables(details: Mapping[str, Any]) -> list[report.Table]:
    """Return the tables of contributions and local errors, without columns that have no value."""
    name, windows = details["name"], details["local_protocol"]["windows"]
    losses = [
        row | {"parts": PARTS.get(row["parts"], row["parts"])} for row in details["contributions"]
    ]
    errors = [row | {"component": OUTPUTS[row["component"]]} for row in details["local_errors"]]
    titles = (
        f"{name}: loss with only some parts compressed",
        f"{name}: errors of each layer, on {windows} windows",
    )
    return [
        report.table(title, _with_headings(rows, _columns_with_values(rows)))
        for title, rows in zip(titles, (losses, errors), strict=True)
    ]


def _columns_with_values(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in rows[0] if any(row[name] is not None for row in rows)]


def _with_headings(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> list[dict[str, Any]]:
    return [{HEADINGS.get(name, name): row[name] for name in columns} for row in rows]
