"""Small pieces of HTML. Everything that comes from a person, a file or a model goes through
`escape`.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from . import text
from .hand import Change
from .job_queue import Jobs
from .job_record import ENDED, JobRecord
from .live import Figure

MOST_CHANGES = 12
TELLING = 0.005  # of a perplexity: less is within what another sample would change


def note(words: str, kind: str = "plain") -> str:
    return f"<div class='note {kind}'>{escape(words)}</div>" if words else ""


def about(name: str, line: str, more: str = "") -> str:
    """One line about what is chosen; the rest opens on a click."""
    rest = (
        f"<details><summary>{escape(text.MORE)}</summary><p>{escape(more)}</p></details>"
        if more
        else ""
    )
    return f"<div class='note about'><b>{escape(name)}</b><span>{escape(line)}</span>{rest}</div>"


def button(label: str, action: str, **data: str) -> str:
    extra = " ".join(f"data-{name}='{escape(value, quote=True)}'" for name, value in data.items())
    return (
        f"<button type='button' class='act {action}' data-action='{action}' "
        f"{extra}>{escape(label)}</button>"
    )


def progress(job: JobRecord) -> str:
    share = 100 * job.done / job.total if job.total else 0
    return f"<span class='bar'><span style='width:{share:.1f}%'></span></span>"


def steps(job: JobRecord) -> str:
    """Stage, layer i/N and time left of a running job."""
    words = [job.part, job.stage, f"{job.done}/{job.total}" if job.total else ""]
    left = job.eta()
    words.append(f"about {text.duration(left)} left in this stage" if left is not None else "")
    return " · ".join(escape(word) for word in words if word)


def strip(jobs: Jobs) -> str:
    """The status strip: the running job, or how the last one ended."""
    job = jobs.running()
    if job is not None:
        queued = len(jobs.waiting()) - 1
        tail = f"<span class='queue'>{queued} queued</span>" if queued else ""
        return (
            f"<div class='strip running' data-job-id='{job.id}'><span "
            f"class='dot'></span><b>{escape(job.title)}</b>"
            f"<span class='steps' data-stage='{escape(job.stage)}' data-done='{job.done}' "
            f"data-total='{job.total}'>{steps(job)}</span>"
            f"{progress(job)}{tail}{button('Cancel', 'cancel', job=job.id)}</div>"
        )
    ended = [job for job in jobs.all() if job.state in ENDED and job.ended]
    last = max(ended, key=lambda job: job.ended, default=None)
    if last is None:
        return "<div class='strip idle'><span class='dot'></span><span>Ready</span></div>"
    words = {"done": f"done in {text.duration(last.seconds())}", "failed": last.error}.get(
        last.state, last.state
    )
    return (
        f"<div class='strip {last.state}' data-job-id='{last.id}'><span "
        f"class='dot'></span><b>{escape(last.title)}</b>"
        f"<span class='words'>{escape(words)}</span></div>"
    )


def job_list(jobs: Jobs) -> str:
    """Running and queued jobs first, then ended ones, newest first."""
    waiting = jobs.waiting()
    ended = sorted(
        (job for job in jobs.all() if job.state in ENDED and job.kept),
        key=lambda job: -(job.ended or 0),
    )[:12]
    rows = "".join(job_row(job, i) for i, job in enumerate(waiting)) + "".join(
        job_row(job, 0) for job in ended
    )
    return f"<div class='jobs'>{rows}</div>" if rows else note(text.NOTHING_QUEUED)


def job_row(job: JobRecord, place: int) -> str:
    if job.state == "running":
        state, acts = (
            steps(job) or "starting",
            progress(job) + button("Cancel", "cancel", job=job.id),
        )
    elif job.state == "queued":
        state, acts = f"queued, {place} before it", button("Cancel", "cancel", job=job.id)
    else:
        state = escape(
            f"done in {text.duration(job.seconds())}"
            if job.state == "done"
            else job.error or job.state
        )
        acts = "" if job.state == "done" else button("Start again", "again", job=job.id)
        if job.kind == "sweep" and job.result and job.job.evaluation:
            acts += "".join(
                button(words, "table", job=job.id, file=file)
                for words, file in text.SWEEP_TABLES.items()
            )
        acts += button("Remove", "forget", job=job.id)
    lines = "\n".join(escape(line) for line in job.log[-200:])
    details = f"<details><summary>log</summary><pre>{lines}</pre></details>" if lines else ""
    return (
        f"<div class='job {job.state}' data-job-id='{job.id}' data-state='{job.state}'><span "
        f"class='dot'></span><b>{escape(job.title)}</b>"
        f"<span class='state'>{state}</span><span class='acts'>{acts}</span>{details}</div>"
    )


def readout(summary: dict[str, Any], actual: str = "") -> str:
    """The big numbers of a plan, or of a model made without one.

    actual: the cell of the measured perplexity, where one is to be shown.
    """
    kv, dense_kv = summary["kv_bytes_per_token"], summary["dense_kv_bytes_per_token"]
    flops, dense_flops = summary["flops_per_token"], summary["dense_flops_per_token"]
    over = " over" if summary["achieved"] < summary.get("requested", 0) - 5e-4 else ""
    cells = [
        cell(
            "parameters",
            text.count(summary["parameters"]),
            less(summary["parameters"], summary["dense_parameters"]),
            "parameters",
        ),
        cell(
            "size",
            text.megabytes(summary["megabytes"]),
            less(summary["megabytes"], summary["dense_megabytes"]),
        ),
        cell("KV cache per token", f"{text.count(kv)} B", less(kv, dense_kv)),
        cell("compute per token", f"{text.short(flops)}FLOPs", less(flops, dense_flops)),
        cell(
            f"removed: {text.budget(summary['budget'])}",
            f"{summary['achieved']:.2%}",
            f"asked for {summary['requested']:.1%}" if "requested" in summary else "",
            "achieved" + over,
        ),
    ]
    quality = (
        [cell("predicted energy kept", f"{summary['energy_kept']:.2%}", text.ENERGY_OF)]
        if "energy_kept" in summary
        else []
    )
    if summary.get("predicted_perplexity") is not None:
        quality.append(
            cell(
                "predicted perplexity", f"{summary['predicted_perplexity']:.3f}", text.PREDICTED_ON
            )
        )
    return (
        "<div class='cells' "
        f"data-parameters='{summary['decoder_parameters']}'>{''.join(cells)}</div>"
        f"<div class='cells quality'>{''.join(quality)}{actual}</div>"
    )


def actual(plan: str, figure: Figure | None) -> str:
    """The cell of the perplexity measured live.

    plan: the key of what is on show; figure None: not known yet.
    """
    if figure is None:
        value, below = text.MEASURING, text.MEASURED_ON
    elif figure.error or figure.perplexity is None:
        value, below = text.NOT_MEASURED, figure.error or text.NOT_FINITE
    else:
        change = less(figure.perplexity, figure.dense) if figure.dense else ""
        value, below = (
            f"{figure.perplexity:.4f}",
            f"{change} ({figure.dense:.4f}) · held-out {text.protocol(figure.protocol)}",
        )
    return (
        f"<div class='cell actual' data-plan='{plan}' data-known='{figure is not None}' "
        "role='status'>"
        f"<span>actual perplexity</span><b>{escape(value)}</b><i>{escape(below)}</i></div>"
    )


def even_key(plan: str) -> str:
    return f"{plan}-even"


def against_even(plan: str, figure: Figure | None, even: Figure | None) -> str:
    """The cell that holds the ranks on show against even ones of the same method and budget,
    both measured on the same windows.
    """
    known = figure is not None and even is not None
    kind, value, below = "", text.MEASURING, text.AGAINST_EVEN
    if known and (figure.perplexity is None or even.perplexity is None):
        value, below = text.NOT_MEASURED, (figure.error or even.error or text.NOT_FINITE)
    elif known:
        change = figure.perplexity / even.perplexity - 1
        value = f"{even.perplexity:.4f}"
        kind = "hurts" if change > TELLING else "helps" if change < -TELLING else ""
        below = {"hurts": text.HURTS, "helps": text.HELPS, "": text.NO_MATTER}[kind].format(
            abs(change)
        )
    return (
        f"<div class='cell against {kind}' data-plan='{even_key(plan)}' data-known='{known}' "
        "role='status'>"
        f"<span>with even ranks instead</span><b>{escape(value)}</b><i>{escape(below)}</i></div>"
    )


def ranking(found: Sequence[tuple[float, str, str, bool]]) -> str:
    """Measured (perplexity, method, policy, whether on show) at one budget, given lowest first;
    nothing for fewer than two.
    """
    if len(found) < 2:
        return ""
    best = found[0]
    now = next((one for one in found if one[3]), None)
    words = text.RANKED.format(best[1], best[2])
    if now is not None and now[0] / best[0] - 1 > TELLING:
        words += text.RANKED_HURTS.format(now[1], now[2], now[0] / best[0] - 1)
    rows = "".join(
        "<tr "
        f"class='{'shown' if shown else ''}'><td>{escape(method)}</td><td>{escape(policy)}</td><td>{value:.4f}</td>"
        f"<td>{'lowest' if value == best[0] else f'+{value / best[0] - 1:.1%}'}</td></tr>"
        for value, method, policy, shown in [
            *found[:MOST_CHANGES],
            *(one for one in found[MOST_CHANGES:] if one[3]),
        ]
    )
    head = "<tr><th>method</th><th>policy</th><th>perplexity</th><th>above the lowest</th></tr>"
    return f"{note(words)}<table class='changes'>{head}{rows}</table>"


def changes(found: Sequence[Change], plan: Any, alone: Any) -> str:
    """What ranks set by hand did: a sentence, and a table of them and of the largest answers of
    the policy.
    """
    by_hand = [one for one in found if one.hand]
    if not by_hand:
        return note(text.BY_HAND_NONE)
    before, after = (float(one.table()["energy"].mean()) for one in (alone, plan))
    words = text.BY_HAND.format(
        hand=len(by_hand), others=len(found) - len(by_hand), before=before, after=after
    )
    rows = "".join(
        f"<tr data-slot='{one.layer}.{escape(one.component)}'><td>layer {one.layer} · "
        f"{escape(one.component)}</td>"
        f"<td>{'by hand' if one.hand else 'policy'}</td><td>{one.policy} → "
        f"{one.rank}</td><td>{one.parameters:+,}</td></tr>"
        for one in found[:MOST_CHANGES]
    )
    head = "<tr><th>slot</th><th>set</th><th>rank</th><th>parameters</th></tr>"
    more = note(f"and {len(found) - MOST_CHANGES} more") if len(found) > MOST_CHANGES else ""
    return f"{note(words)}<table class='changes'>{head}{rows}</table>{more}"


def cell(label: str, value: str, below: str = "", name: str = "") -> str:
    return (
        "<div class='cell "
        f"{name}'><span>{escape(label)}</span><b>{escape(value)}</b><i>{escape(below)}</i></div>"
    )


def less(now: float, before: float) -> str:
    """The change against the dense model in words."""
    if not before or now == before:
        return "as dense"
    return f"{now / before - 1:+.1%} vs dense".replace("-", "−")


def card(title: str, cells: Iterable[str], foot: str) -> str:
    return (
        f"<div class='card'><h4>{escape(title)}</h4><div class='cells'>{''.join(cells)}</div><p "
        f"class='foot'>{escape(foot)}</p></div>"
    )


def coloured(tokens: Sequence[tuple[str, float, float]]) -> str:
    """Tokens by surprise difference. tokens: (text, dense nll, compressed nll) in nats."""
    spans = []
    for token, dense, small in tokens:
        change = small - dense
        strength = (
            min(abs(change) / 3, 1) if math.isfinite(change) else 0
        )  # 3 nats: twenty times less likely; the first has no loss
        hue = "214,62,62" if change > 0 else "60,120,200"
        shown = escape(token).replace("\n", "↵<br>")
        tip = escape(
            f"dense {dense:.2f}, compressed {small:.2f}, change {change:+.2f} nats", quote=True
        )
        spans.append(
            f"<span title='{tip}' "
            f"style='background:rgba({hue},{0.75 * strength:.2f})'>{shown}</span>"
        )
    return f"<div class='tokens'>{''.join(spans)}</div>"
