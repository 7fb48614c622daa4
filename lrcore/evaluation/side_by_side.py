"""Several models beside the first: quality, distance and cost in one row each, and a page of it."""

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..models.load import LoadedModel
from ..progress import Progress
from . import report
from .compare import compare
from .contributions import contributions
from .cost import measure_cost, measure_speed
from .local_errors import local_errors
from .protocols import EvaluationSettings

AXES = {
    "parameters": "parameters",
    "kv_bytes_per_token": "KV bytes per token",
    "flops_decode": "FLOPs per decoded token",
    "seconds_per_token": "seconds per decoded token",
}
MOST = 6


def side_by_side(
    models: Sequence[LoadedModel],
    asked: EvaluationSettings,
    speed: bool = False,
    local: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The first model and up to five others on the same tokens. Plain values.

    "models": one row each, the first with itself; "protocol"; with `speed`, tokens per second
    measured in turns; with `local`, for each of the others, "local_errors" and "contributions"
    against the first. Raises InputError as `compare` does.
    """
    if not 2 <= len(models) <= MOST:
        raise InputError(
            f"{len(models)} models were given; two to {MOST} can be laid side by side."
        )
    dense = models[0]
    rows: list[dict[str, Any]] = []
    for model in models[1:]:
        found = compare(dense, model, asked, progress=progress)
        if not rows:
            rows.append(_row(dense, found.dense.to_dict(), 0.0, 1.0, 0.0))
        rows.append(_row(model, found.small.to_dict(), found.kl, found.top1, found.delta))
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
    result: dict[str, Any] = {"models": rows, "protocol": found.dense.protocol}
    if local:
        result["details"] = [_details(dense, model, asked, progress) for model in models[1:]]
    return result


def _row(
    model: LoadedModel, evaluation: dict[str, Any], kl: float, top1: float, delta: float
) -> dict[str, Any]:
    kept = ("perplexity", "nll", "bits_per_byte", "word_perplexity", "tokens", "nonfinite")
    return {
        "name": model.name,
        **{name: evaluation[name] for name in kept},
        "delta_nll": delta,
        "kl": kl,
        "top1": top1,
    }


def _details(
    dense: LoadedModel, small: LoadedModel, asked: EvaluationSettings, progress: Progress | None
) -> dict[str, Any]:
    errors = local_errors(
        dense, small, asked.data, min(asked.samples or 8, 8), asked.seq_len, progress
    )
    parts = contributions(
        dense, small, asked.data, asked.samples, asked.seq_len, asked.protocol, progress
    )
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
            parts.append(
                report.section(
                    f"Perplexity against {name}", report.scatter(points, name, "perplexity")
                )
            )
    quality = (
        "name",
        "perplexity",
        "delta_nll",
        "kl",
        "top1",
        "bits_per_byte",
        "word_perplexity",
        "nonfinite",
    )
    cost = [
        {
            name: value
            for name, value in row.items()
            if name == "name" or name not in {*quality, "nll", "tokens"}
        }
        for row in rows
    ]
    for one in result.get("details", ()):
        parts.append(
            report.section(
                f"{one['name']}: what each component costs", report.table(one["contributions"])
            )
        )
        parts.append(
            report.section(
                f"{one['name']}: local errors, measured and predicted",
                report.table(one["local_errors"]),
            )
        )
    return report.page(
        title,
        report.section(
            "Quality", report.table([{name: row[name] for name in quality} for row in rows])
        ),
        report.section("Cost", report.table(cost)),
        *parts,
        report.section("Protocol", report.facts(result["protocol"])),
    )
