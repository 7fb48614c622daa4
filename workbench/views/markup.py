"""Pieces of HTML for several tabs.

All text from a user, a file or a model passes through `escape`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import lrcore
from lrcore.ranks.plan import RankPlan
from lrcore.system.path_access import strip_paths

from .. import words
from ..base import numbers
from ..state.keys import BYTES
from ..state.live import LiveFigure
from ..state.manual_ranks import Change
from .term_markup import marked

MOST_CHANGES = 12  # rows of the table of manual ranks
EXPERT = "expert-part"  # class of what the page hides while the expert settings are folded
USE_UNIFORM = "uniform"  # action of a button
MOST_RANKED = 40  # rows of the ranking: each method with two policies, and ten more
LEAST_GAP = 0.005  # relative perplexity: a ranking does not mention smaller differences


def note(sentence: str, kind: str = "plain") -> str:
    """Return a paragraph. kind: "plain", "hint" or "error". Terms are marked in a plain one."""
    if not sentence:
        return ""
    as_html = marked if kind == "plain" else escape
    return f"<div class='note {kind}'>{as_html(strip_paths(sentence))}</div>"


def prose(text: str) -> str:
    """Return a paragraph of our own words, with **bold** and `code` in it; "" without words."""
    escaped = escape(text, quote=False)
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escaped)
    code = re.sub(r"`(.+?)`", r"<code>\1</code>", bold)
    return f"<p class='prose'>{code}</p>" if text else ""


def missing(waiting_jobs: Sequence[Any], sentence: str) -> str:
    """Return the note in place of a missing result.

    It announces the result if jobs are waiting; otherwise `sentence` says how to get the result.
    """
    return note(words.spectra.WORKING, "hint working") if waiting_jobs else note(sentence, "hint")


def stale(html: str) -> str:
    """Return HTML that makes the page dim the plots next to it, which show other settings."""
    return f"<div class='stale'>{html}</div>"


# Markdown of pictures and links, and parts of addresses that would become links: {text: escaped}.
ESCAPED = {"![": "!\\[", "](": "]\\(", "][": "]\\[", "://": ":\\/\\/", "www.": "www\\."}


def as_markdown(text: str) -> str:
    """Return untrusted text that is safe as Markdown: HTML, pictures and links appear as text."""
    escaped = escape(strip_paths(text), quote=False)
    for plain, replacement in ESCAPED.items():
        escaped = escaped.replace(plain, replacement)
    return escaped


def about(name: str, summary: str, details: str = "") -> str:
    """Return a line about a choice; a click unfolds the details."""
    unfolded = ""
    if details:
        unfolded = (
            f"<details><summary>{escape(words.allocation.NOTES)}</summary>"
            f"<p>{escape(details)}</p></details>"
        )
    return (
        f"<div class='note about'><b>{escape(name)}</b><span>{escape(summary)}</span>"
        f"{unfolded}</div>"
    )


def chosen(method: str, policy: str, budget: str, descriptions: str) -> str:
    """Return the line of the chosen method, policy and kind of budget; an expert also sees
    descriptions.
    """
    line = escape(words.allocation.CHOSEN.format(method, policy, budget))
    return f"<div class='note chosen'>{line}</div><div class='{EXPERT}'>{descriptions}</div>"


def folded(label: str, sentence: str) -> str:
    """Return a sentence that a click on the label unfolds."""
    return (
        f"<div class='note about'><details><summary>{escape(label)}</summary>"
        f"<p>{escape(sentence)}</p></details></div>"
    )


def button(label: str, action: str, **data: str) -> str:
    """Return a button that reports an action and data to the server."""
    extra = " ".join(f"data-{name}='{escape(value, quote=True)}'" for name, value in data.items())
    return (
        f"<button type='button' class='act {action}' data-action='{action}' {extra}>"
        f"{escape(label)}</button>"
    )


def measure_first(
    recipe: lrcore.Recipe, seconds: float | None, is_running: bool, displayed_policy: str
) -> str:
    """Return the note of a plan that waits for measurements, with a button that starts them.

    seconds: estimated duration; None if unknown. displayed_policy: the policy of the ranks that
    are displayed until the measurements end.
    """
    text = words.allocation
    by_budget = {"latency": text.TIME_FIRST, BYTES: text.BYTES_FIRST}
    sentence = by_budget.get(recipe.budget, text.MEASURE_FIRST)
    subject = text.budget(recipe.budget) if recipe.budget in by_budget else recipe.policy
    if is_running or seconds == 0:
        return note(text.MEASURES_NOW.format(subject, displayed_policy), "hint")
    return measure_button(
        sentence.format(subject, displayed_policy), words.allocation.run_button(seconds)
    )


def preview_heading(title: str) -> str:
    """Return the heading of a cell whose curves are shown until the pointer leaves it."""
    return f"<h3>{marked(title)}</h3>{note(words.spectra.PREVIEW)}"


def measure_button(sentence: str, label: str) -> str:
    """Return a sentence and the button that starts a measurement."""
    press = button(label, "measure")
    return f"<div class='note hint ask'><span>{escape(sentence)}</span>{press}</div>"


def summary(account: dict[str, Any], perplexities: str = "", context: int = 0) -> str:
    """Return cells with the size, the cost and the quality of a plan or a model.

    account: as `RankPlan.summary` returns it. perplexities: cells with predicted and measured
    perplexities. context: tokens of the cache for the displayed size; 0 for no such cell.
    """
    decoder = account["decoder_parameters"]
    quality = []
    if "energy_kept" in account:
        energy = numbers.percent(account["energy_kept"], 2)
        quality.append(cell("predicted energy kept", energy, words.allocation.ENERGY_INFO, EXPERT))
    costs = "".join(cost_cells(account, context))
    return (
        f"<div class='cells' data-parameters='{decoder}'>{costs}</div>"
        f"<div class='cells quality'>{''.join(quality)}{perplexities}</div>"
    )


def prediction_cell(account: dict[str, Any]) -> str:
    """Return the cell of the perplexity that was predicted for a run; "" without a prediction."""
    predicted = account.get("predicted_perplexity")
    if predicted is None:
        return ""
    return cell("predicted perplexity", numbers.perplexity(predicted), prediction_info(account))


def predicted_change_cell(label: str, plan: RankPlan, tokens: int, info: str = "") -> str:
    """Return the cell with the predicted change of the perplexity from dense; "" without probes.

    tokens: of the sample on which the change is measured. info: replaces the interval.
    """
    if plan.probes is None:
        return ""
    predicted, dense = plan.predicted_for(tokens), plan.dense_perplexity
    if predicted is None or dense is None:
        text = words.allocation
        reason = text.NOT_PREDICTED_TRAINED if plan.is_trained else text.NOT_PREDICTED_INFO
        return cell(label, text.NOT_PREDICTED, reason)
    suffix = "" if plan.probes.held_out else words.allocation.PROBED_ON_CALIBRATION
    if predicted.low is None or predicted.high is None:
        interval = words.allocation.PREDICTED_POINT.format(suffix)
    else:
        ends = (numbers.relative_change(end / dense - 1) for end in (predicted.low, predicted.high))
        interval = words.allocation.CHANGE_RANGE.format(*ends, numbers.count(tokens), suffix)
    return cell(label, numbers.relative_change(predicted.perplexity / dense - 1), info or interval)


def prediction_info(account: dict[str, Any]) -> str:
    """Return the interval of a predicted perplexity, if known, and the text."""
    on_calibration = account.get("predicted_held_out") is False
    text = words.allocation.PROBED_ON_CALIBRATION if on_calibration else ""
    low, high = account.get("predicted_low"), account.get("predicted_high")
    if low is None or high is None:
        return words.allocation.PREDICTED_POINT.format(text)
    interval = numbers.perplexity(low), numbers.perplexity(high)
    return words.allocation.PREDICTED_RANGE.format(*interval, text)


def cost_cells(account: dict[str, Any], context: int = 0) -> list[str]:
    """Return cells with parameters, size, KV cache and compute, and the removed fraction.

    context: see `summary`.
    """
    parameters, megabytes, kv, flops = (
        (account[name], account[f"dense_{name}"])
        for name in ("parameters", "megabytes", "kv_bytes_per_token", "flops_per_token")
    )
    requested = account.get("requested")
    # marked if the plan removes less than requested, beyond the displayed digits
    mark = "over" if account["achieved"] < (requested or 0) - 5e-4 else EXPERT
    return [
        cell(
            "parameters", numbers.count(parameters[0]), change(*parameters), f"parameters {EXPERT}"
        ),
        cell("size", numbers.megabytes(megabytes[0]), change(*megabytes)),
        cell("KV cache per token", f"{numbers.count(kv[0])} B", change(*kv)),
        *state_cells(account),
        *cache_cells(account, context),
        cell("compute per token", f"{numbers.with_prefix(flops[0])}FLOPs", change(*flops), EXPERT),
        *time_cells(account),
        cell(
            f"removed: {words.allocation.budget(account['budget'])}",
            numbers.percent(account["achieved"], 2),
            f"requested {numbers.percent(requested)}" if requested is not None else "",
            f"achieved {mark}",
        ),
    ]


def state_cells(account: dict[str, Any]) -> list[str]:
    """Return the cell with the states of layers that keep no keys and values, if there are any."""
    if "state_bytes" not in account:
        return []
    size = account["state_bytes"]  # no method changes it
    return [
        cell(words.allocation.STATES, numbers.megabytes(size / 1e6), change(size, size), EXPERT)
    ]


def cache_cells(account: dict[str, Any], context: int) -> list[str]:
    """Return the cell with the size of a full cache, with the states."""
    if not context:
        return []
    size, dense_size = (
        numbers.megabytes(
            (account[f"{prefix}kv_bytes_per_token"] * context + account.get("state_bytes", 0)) / 1e6
        )
        for prefix in ("", "dense_")
    )
    label = words.allocation.CACHE.format(numbers.count(context))
    return [cell(label, size, f"{dense_size} dense", f"cache {EXPERT}")]


def time_cells(account: dict[str, Any]) -> list[str]:
    """Return the cell with the time of the decoder layers, if it was measured."""
    if account.get("latency") is None:
        return []
    seconds, dense = account["latency"], account["dense_latency"]
    return [
        cell(
            words.allocation.LAYER_TIME,
            numbers.milliseconds(seconds),
            change(seconds, dense),
            EXPERT,
        )
    ]


def actual_cell(plan: str, figure: LiveFigure | None, measures_more: bool = False) -> str:
    """Return the cell with the change of the perplexity from dense that is measured live.

    plan: the key of the displayed plan. figure: None if it is not measured yet. measures_more:
    True if a measurement on more tokens is running.
    """
    if figure is None:
        value, info = words.allocation.MEASURING, words.allocation.MEASURED_ON
    elif figure.error or figure.perplexity is None:
        value = words.compare_and_runs.NOT_MEASURED
        info = figure.error or words.allocation.NOT_FINITE
    else:
        value, perplexities = _measured_change(figure.perplexity, figure.dense)
        protocol = words.compare_and_runs.protocol(without_folders(figure.protocol))
        held_out = "held-out " if figure.is_held_out else ""
        info = f"{perplexities} · {held_out}{protocol}"
    # The browser replaces a cell only by a cell with more windows (assets/pending.js). Half a
    # window is added so that it shows the start of a measurement on more tokens.
    windows = 0.0 if figure is None else figure.windows
    if measures_more and figure is not None:
        info, windows = f"{info} · {words.allocation.MEASURES_MORE}", windows + 0.5
    return (
        f"<div class='cell actual' data-plan='{plan}' data-known='{figure is not None}' "
        f"data-windows='{windows}' {_perplexity_data(figure)}role='status'>"
        f"<span>{words.allocation.ACTUAL}</span><b>{escape(value)}</b><i>{escape(info)}</i></div>"
    )


def _measured_change(perplexity: float, dense: float | None) -> tuple[str, str]:
    """Return the change of a measured perplexity from dense, and both perplexities."""
    if not dense:
        return numbers.perplexity(perplexity), ""
    values = numbers.perplexity(perplexity), numbers.perplexity(dense)
    return (
        numbers.relative_change(perplexity / dense - 1),
        words.allocation.PERPLEXITIES.format(*values),
    )


def _perplexity_data(figure: LiveFigure | None) -> str:
    """Return the attribute of a cell with a measured perplexity, for scripts; "" without one."""
    if figure is None or figure.perplexity is None:
        return ""
    return f"data-perplexity='{numbers.perplexity(figure.perplexity)}' "


def without_folders(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return a protocol with file names without folders, for narrow places."""
    names = {key: str(protocol[key]) for key in ("source", "data") if protocol.get(key)}
    return dict(protocol) | {key: words.spectra.short_name(name) for key, name in names.items()}


def uniform_key(plan: str) -> str:
    """Return the key of the cell that compares a plan with uniform ranks."""
    return f"{plan}-uniform"


def pinned_key(plan: str, pinned: str) -> str:
    """Return the key of the cell that compares a plan with the pinned plan, from their keys."""
    return f"{plan}-{pinned}"


def common_windows(figure: LiveFigure | None, reference: LiveFigure | None) -> int:
    """Return the number of windows on which both were measured; 0 if either is unknown."""
    if figure is None or reference is None:
        return 0
    return min(figure.windows, reference.windows)


def uniform_cell(
    plan: str, figure: LiveFigure | None, uniform: LiveFigure | None, equal_bits: bool = False
) -> str:
    """Return the cell that compares the displayed plan with uniform ranks on the same windows.

    equal_bits: whether the budget counts bytes, so that uniform ranks are full and have equal bits;
    a measured figure has this information.
    """
    text, equal_bits = words.allocation, equal_bits or bool(uniform and uniform.counts_bytes)

    def comparison(difference: float, error: float, kind: str) -> str:
        if figure is None or not figure.is_held_out:
            return text.NOT_HELD_OUT
        sentence = {"hurts": text.WORSE, "helps": text.BETTER, "": text.NO_DIFFERENCE}[kind]
        name = text.EQUAL_BITS if equal_bits else text.UNIFORM_RANKS
        return sentence.format(name, *map(numbers.percent, (abs(difference), error)))

    def use_uniform(perplexity: float, lower: float) -> str:
        label = text.USE_EQUAL_BITS if equal_bits else text.USE_UNIFORM
        perplexities = map(numbers.short_perplexity, (lower, perplexity))
        return button(label.format(*perplexities), USE_UNIFORM)

    labels = (
        (text.WITH_EQUAL_BITS, text.EQUAL_BITS_INFO)
        if equal_bits
        else (text.WITH_UNIFORM, text.UNIFORM_INFO)
    )
    return _comparison_cell(uniform_key(plan), labels, figure, uniform, comparison, use_uniform)


def verdict(difference: float, error: float) -> str:
    """Return "hurts" or "helps" for a difference beyond two standard errors, otherwise ""."""
    if not abs(difference) > 2 * error:  # also for an unknown error (NaN)
        return ""
    return "hurts" if difference > 0 else "helps"


def pinned_cell(key: str, figure: LiveFigure | None, pinned: LiveFigure | None) -> str:
    """Return the cell that compares the displayed plan with the pinned plan.

    key: as `pinned_key` returns it.
    """

    def comparison(difference: float, error: float, _kind: str) -> str:
        return words.allocation.MEASURED_CHANGE.format(
            numbers.relative_change(difference, 2), numbers.percent(error, 2)
        )

    labels = words.allocation.PINNED_MEASURED, ""
    return _comparison_cell(key, labels, figure, pinned, comparison)


def _comparison_cell(
    key: str,
    labels: tuple[str, str],
    figure: LiveFigure | None,
    reference: LiveFigure | None,
    comparison: Callable[[float, float, str], str],
    remedy: Callable[[float, float], str] = lambda *_: "",
) -> str:
    """Return the cell with the change of a reference plan's perplexity from dense.

    labels: above the change, and below it until both figures are known. comparison: the
    sentence below it, from the relative difference, standard error and verdict. remedy: HTML below
    it if the displayed plan is worse, from both perplexities.
    """
    is_known, kind, value, info = False, "", words.allocation.MEASURING, labels[1]
    common, action = None, ""
    if figure is not None and reference is not None:
        is_known = True
        if figure.perplexity is None or reference.perplexity is None:
            value = words.compare_and_runs.NOT_MEASURED
            info = figure.error or reference.error or words.allocation.NOT_FINITE
        else:
            difference, error = figure.relative_change(reference)
            common = reference.restricted_to(figure)
            value, perplexities = _measured_change(common.perplexity, common.dense)
            kind = verdict(difference, error) if figure.is_held_out else ""
            info = " · ".join(filter(None, (perplexities, comparison(difference, error, kind))))
            if kind == "hurts":
                action = remedy(figure.restricted_to(reference).perplexity, common.perplexity)
    return (
        f"<div class='cell against {kind}' data-plan='{key}' data-known='{is_known}' "
        f"data-windows='{common_windows(figure, reference)}' {_perplexity_data(common)}"
        "role='status'>"
        f"<span>{escape(labels[0])}</span><b>{escape(value)}</b><i>{escape(info)}</i>{action}</div>"
    )


def ranking(results: Sequence[tuple[float, str, str, bool, float]], held_out: bool = True) -> str:
    """Return a table of the perplexities measured at the same budget; "" for fewer than two.

    results: (perplexity, method, policy, is_displayed, standard error of the relative
    difference to the lowest), lowest first. held_out: True if calibration has not seen the text.
    """
    if len(results) < 2:
        return ""
    lowest = results[0]
    displayed = next((result for result in results if result[3]), None)
    sentence = words.allocation.LOWEST.format(lowest[1], lowest[2])
    if displayed is not None and displayed[0] / lowest[0] - 1 > LEAST_GAP:
        gap = numbers.percent(displayed[0] / lowest[0] - 1)
        sentence += words.allocation.ABOVE_LOWEST.format(displayed[1], displayed[2], gap)
    sentence = sentence if held_out else words.allocation.RANKED_ON_CALIBRATION_TEXT
    # the displayed plan has a row even if it ranks below the last row
    displayed_below = [result for result in results[MOST_RANKED:] if result[3]]
    rows = "".join(
        f"<tr class='{'shown' if is_displayed else ''}'><td>{escape(method)}</td>"
        f"<td>{escape(policy)}</td><td>{numbers.perplexity(value)}</td>"
        f"<td>{'lowest' if value == lowest[0] else _gap(value / lowest[0] - 1, error)}</td></tr>"
        for value, method, policy, is_displayed, error in [
            *results[:MOST_RANKED],
            *displayed_below,
        ]
    )
    head = "<tr><th>method</th><th>policy</th><th>perplexity</th><th>above the lowest</th></tr>"
    return f"{note(sentence)}<table class='changes'>{head}{rows}</table>"


def _gap(share: float, error: float) -> str:
    """Return a relative difference ± the standard error, if known."""
    spread = "" if math.isnan(error) else f" ± {numbers.percent(error)}"
    return f"{numbers.relative_change(share)}{spread}"


def changes(changed: Sequence[Change], plan: Any, policy_plan: Any) -> str:
    """Return a sentence and a table about the effect of manual ranks; "" without any.

    policy_plan: the plan of the policy without manual ranks.
    """
    manual = [row for row in changed if row.is_manual]
    if not manual:
        return ""
    before, after = (
        numbers.percent(float(ranks.table()["energy"].mean()), 2) for ranks in (policy_plan, plan)
    )
    counts = {"hand": len(manual), "others": len(changed) - len(manual)}
    sentence = words.allocation.MANUAL_CHANGES.format(**counts, before=before, after=after)
    rows = "".join(
        f"<tr data-slot='{row.layer}.{escape(row.component)}'>"
        f"<td>layer {row.layer} · {escape(row.component)}</td>"
        f"<td>{'manually' if row.is_manual else 'policy'}</td>"
        f"<td>{policy_rank(row)} → {row.rank}</td>"
        f"<td>{numbers.signed(row.parameters)}</td></tr>"
        for row in changed[:MOST_CHANGES]
    )
    head = "<tr><th>layer and component</th><th>set</th><th>rank</th><th>parameters</th></tr>"
    hidden_rows = len(changed) - MOST_CHANGES
    remaining = note(f"and {hidden_rows} more") if hidden_rows > 0 else ""
    return f"{note(sentence)}<table class='changes'>{head}{rows}</table>{remaining}"


def policy_rank(row: Change) -> str:
    """Return the rank without manual ranks."""
    return words.allocation.ANOTHER_FORM if row.policy_rank is None else str(row.policy_rank)


def cell(label: str, value: str, info: str = "", name: str = "") -> str:
    """Return a figure with a label above and an explanation below."""
    return (
        f"<div class='cell {name}'><span>{marked(label)}</span><b>{escape(value)}</b>"
        f"<i>{escape(info)}</i></div>"
    )


def change(value: float, dense: float) -> str:
    """Return the relative change from the dense model."""
    if not dense or value == dense:
        return "as dense"
    return f"{numbers.relative_change(value / dense - 1)} vs dense"
