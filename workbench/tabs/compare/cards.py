"""The cards: each dense model first, then its runs against it."""

from collections.abc import Mapping, Sequence
from typing import Any

import lrcore

from ... import markup, text
from .chart import SPEEDS
from .protocols import evaluation_of, protocol_of


def all_cards(runs: Sequence[lrcore.Run], protocol: str | None, speeds: Mapping[str, Any]) -> str:
    """speeds: {"dense", "small"} of the runs that have any, by id."""
    if not runs:
        return markup.note(text.NO_RUNS, "hint")
    return "".join(
        f"<div class='cards'>{''.join(cards_of_base(own, protocol, speeds))}</div>"
        for own in by_base(runs)
    )


def cards_of_base(
    runs: Sequence[lrcore.Run], protocol: str | None, speeds: Mapping[str, Any]
) -> list[str]:
    """The card of the dense model that these runs were made of, then theirs."""
    # what the dense model has under the protocol; a run that was not measured under it has less
    measured = [(run, evaluation_of(run, protocol)) for run in runs]
    first = next((pair for pair in measured if under(*pair, protocol)), measured[0])
    return [dense_card(*first), *(run_card(*pair, speeds.get(pair[0].id)) for pair in measured)]


def under(run: lrcore.Run, evaluation: dict[str, Any] | None, protocol: str | None) -> bool:
    return evaluation is not None and protocol_of(run, evaluation) == protocol


def by_base(runs: Sequence[lrcore.Run]) -> list[list[lrcore.Run]]:
    """The runs by the dense model that they were made of, in the order of the first of each."""
    groups: dict[tuple[str, str], list[lrcore.Run]] = {}
    for run in runs:
        base = "" if run.base is None else run.base.fingerprint
        groups.setdefault((run.recipe.model, base), []).append(run)
    return list(groups.values())


def dense_card(run: lrcore.Run, evaluation: dict[str, Any] | None) -> str:
    """The dense model of a run."""
    summary = run.account.to_dict()
    known = evaluation and evaluation["dense_perplexity"]
    kv, flops = summary["dense_kv_bytes_per_token"], summary["dense_flops_per_token"]
    cells = [
        markup.cell(
            "perplexity",
            f"{evaluation['dense_perplexity']:.4f}" if known else text.NOT_MEASURED,
        ),
        markup.cell("size", text.megabytes(summary["dense_megabytes"])),
        markup.cell("KV cache per token", f"{text.count(kv)} B"),
        markup.cell("compute per token", f"{text.short(flops)}FLOPs"),
    ]
    foot = text.protocol(evaluation["protocol"]) if evaluation else ""
    return markup.card(f"dense · {run.recipe.model}", cells, foot)


def run_card(
    run: lrcore.Run, evaluation: dict[str, Any] | None, speed: dict[str, Any] | None = None
) -> str:
    """A run: size and cost, and what was measured of it."""
    cells = [perplexity_cell(evaluation), *cost_cells(run.account.to_dict())]
    if evaluation and evaluation.get("kl") is not None:
        top1 = f"likeliest token the same at {evaluation['top1']:.1%}"
        cells.append(markup.cell("KL to dense", f"{evaluation['kl']:.4f}", top1))
    for name in SPEEDS if speed else ():
        now, before = (speed[side][name] for side in ("small", "dense"))
        change = f"{markup.less(now, before)} ({text.speed(before)})"
        cells.append(markup.cell(f"{name} speed", text.speed(now), change))
    foot = text.protocol(evaluation["protocol"]) if evaluation else ""
    if evaluation and not evaluation.get("same_base", True):
        foot += f". {text.OTHER_BASE}"
    return markup.card(run.name, cells, foot)


def perplexity_cell(evaluation: dict[str, Any] | None) -> str:
    if not evaluation or not evaluation["perplexity"]:
        return markup.cell("perplexity", text.NOT_MEASURED)
    value, before = evaluation["perplexity"], evaluation["dense_perplexity"]
    return markup.cell("perplexity", f"{value:.4f}", markup.less(value, before) if before else "")


def cost_cells(summary: dict[str, Any]) -> list[str]:
    """Size, KV cache and compute of a run against its dense model."""
    size, kv, flops = (
        summary[name] for name in ("megabytes", "kv_bytes_per_token", "flops_per_token")
    )
    return [
        markup.cell("size", text.megabytes(size), markup.less(size, summary["dense_megabytes"])),
        markup.cell(
            "KV cache per token",
            f"{text.count(kv)} B",
            markup.less(kv, summary["dense_kv_bytes_per_token"]),
        ),
        markup.cell(
            "compute per token",
            f"{text.short(flops)}FLOPs",
            markup.less(flops, summary["dense_flops_per_token"]),
        ),
    ]
