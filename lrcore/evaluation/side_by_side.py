"""Several models compared with the first: quality, distance and cost, as rows and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..models.load import LoadedModel
from ..progress import Progress
from . import report
from .compare import compare
from .contributions import contributions
from .cost import measure_cost, measure_speed
from .local_errors import local_errors
from .protocols import apart
from .settings import EvaluationSettings

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
MOST = 6  # models
_ITSELF = {"delta": 0.0, "delta_error": None, "kl": 0.0, "top1": 1.0}  # a model beside itself


def side_by_side(
    models: Sequence[LoadedModel],
    settings: EvaluationSettings,
    speed: bool = False,
    local: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The first model and up to five others on the same tokens, as plain values.

    "models": one row each, the first compared with itself, delta_error the standard error of
    delta_nll, None where there is none; "protocol"; with `speed`, tokens per second, measured in
    alternation; with `local`, "details": local errors and contributions of each of the others.
    Raises InputError as `compare` does, and for fewer than two or more than `MOST` models.
    """
    if not 2 <= len(models) <= MOST:
        raise InputError(f"{len(models)} models were given; two to {MOST} can be compared.")
    dense, settings = models[0], apart(models, settings)
    rows: list[dict[str, Any]] = []
    protocol: dict[str, Any] = {}
    for model in models[1:]:
        both = compare(dense, model, settings, progress=progress)
        seen = both.small.protocol.get("on_calibration_text")
        protocol |= both.dense.protocol | ({"on_calibration_text": True} if seen else {})
        found = both.to_dict()
        if not rows:
            rows.append(_row(dense, found["dense"], _ITSELF))
        rows.append(_row(model, found["small"], found))
    context = min(256, (dense.context or 257) - 1)
    for row, model in zip(rows, models, strict=True):
        row |= measure_cost(model, context).to_dict()
    if speed:
        for row, one in zip(rows, measure_speed(models, progress=progress), strict=True):
            row |= {
                "prefill_tokens_per_second": one.prefill,
                "decode_tokens_per_second": one.decode,
                "peak_memory": one.peak_memory,
                "seconds_per_token": 1 / one.decode,
            }
    result: dict[str, Any] = {"models": rows, "protocol": protocol}
    if local:
        result["details"] = [_details(dense, model, settings, progress) for model in models[1:]]
    return result


def _row(
    model: LoadedModel, evaluation: Mapping[str, Any], distance: Mapping[str, Any]
) -> dict[str, Any]:
    kept = ("perplexity", "nll", "bits_per_byte", "word_perplexity", "tokens", "nonfinite")
    return {
        "name": model.name,
        **{name: evaluation[name] for name in kept},
        "delta_nll": distance["delta"],
        "delta_error": distance["delta_error"],
        "kl": distance["kl"],
        "top1": distance["top1"],
    }


def _details(
    dense: LoadedModel, small: LoadedModel, settings: EvaluationSettings, progress: Progress | None
) -> dict[str, Any]:
    few = EvaluationSettings(settings.data, min(settings.samples or 8, 8), settings.seq_len)
    errors = local_errors(dense, small, few, progress=progress)
    first = replace(settings, sampling="first", seed=0, stride=None)
    parts = contributions(dense, small, first, progress=progress)
    rows = errors.table().astype(object).where(lambda frame: frame.notna(), None).to_dict("records")
    return {
        "name": small.name,
        "local_errors": rows,
        "local_protocol": errors.protocol,
        "contributions": parts.rows,
    }


def html(result: dict[str, Any], title: str = "Models side by side") -> str:
    """The result of `side_by_side` as one self-contained page."""
    rows, parts = result["models"], []
    for key, name in AXES.items():
        points = [
            report.Point(r["name"], r["name"], r[key], r["perplexity"])
            for r in rows
            if r.get(key) and r["perplexity"]
        ]
        if points:
            figure = report.scatter(points, name, "perplexity")
            parts.append(report.section(f"Perplexity against {name}", figure))
    other = {*QUALITY[1:], "nll", "tokens"}
    quality = [{name: row[name] for name in QUALITY} for row in rows]
    cost = [{name: row[name] for name in row if name not in other} for row in rows]
    for one in result.get("details", ()):
        components, local = report.table(one["contributions"]), report.table(one["local_errors"])
        parts.append(report.section(f"{one['name']}: loss by component", components))
        parts.append(report.section(f"{one['name']}: local errors, measured and predicted", local))
    return report.page(
        title,
        report.section("Quality", report.table(quality)),
        report.section("Cost", report.table(cost)),
        *parts,
        report.section("Protocol", report.facts(result["protocol"])),
    )
