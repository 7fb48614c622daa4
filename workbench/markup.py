"""Small pieces of HTML. Everything that comes from a person, a file or a model goes through
`escape`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import lrcore

from . import hand_text, measuring_text, numbers, pin_text, saving_text, text
from .hand import Change
from .keys import timed
from .live import Figure

MOST_CHANGES = 12
MOST_RANKED = 40  # every method by a policy and with uniform ranks, and ten more
MOST_NATS = 3  # of a colour: twenty times less likely
LINE_END = "\n"
TELLING = 0.005  # of a perplexity: less is not said of a ranking


def note(sentence: str, kind: str = "plain") -> str:
    """A paragraph of its own; kind: "plain", "hint" or "error"."""
    return (
        f"<div class='note {kind}'>{escape(lrcore.without_paths(sentence))}</div>"
        if sentence
        else ""
    )


def missing(waiting: Sequence[Any], sentence: str) -> str:
    """In the place of what is not here yet: that it is being made while jobs are waiting, else the
    sentence, which says how to have it made.
    """
    return note(text.WORKING, "hint working") if waiting else note(sentence, "hint")


def stale(html: str) -> str:
    """The same in a panel beside plots that are of other settings: the page dims those."""
    return f"<div class='stale'>{html}</div>"


# How Markdown is told that something is no picture, no link, and no address that becomes one.
AS_WRITTEN = {"![": "!\\[", "](": "]\\(", "][": "]\\[", "://": ":\\/\\/", "www.": "www\\."}


def as_markdown(text: str) -> str:
    """Text with outside parts in it, safe to show as Markdown: its HTML, its pictures, which a
    browser would fetch, and its links are shown as they are written.
    """
    plain = escape(lrcore.without_paths(text), quote=False)
    for written, shown in AS_WRITTEN.items():
        plain = plain.replace(written, shown)
    return plain


def about(name: str, line: str, more: str = "") -> str:
    """One line about what is chosen; the rest opens on a click."""
    rest = (
        f"<details><summary>{escape(text.MORE)}</summary><p>{escape(more)}</p></details>"
        if more
        else ""
    )
    return f"<div class='note about'><b>{escape(name)}</b><span>{escape(line)}</span>{rest}</div>"


def folded(label: str, sentence: str) -> str:
    """A sentence that opens on a click."""
    return (
        f"<div class='note about'><details><summary>{escape(label)}</summary>"
        f"<p>{escape(sentence)}</p></details></div>"
    )


def button(label: str, action: str, **data: str) -> str:
    extra = " ".join(f"data-{name}='{escape(value, quote=True)}'" for name, value in data.items())
    return (
        f"<button type='button' class='act {action}' data-action='{action}' {extra}>"
        f"{escape(label)}</button>"
    )


def measure_first(recipe: lrcore.Recipe, seconds: float | None, running: bool, before: str) -> str:
    """That a policy or a budget has to measure on the model, with the button that has it measured,
    and by which policy the ranks on show are until then.

    seconds: about how long it takes; None where nobody knows.
    """
    by_time = timed(recipe)
    what = text.budget(recipe.budget) if by_time else recipe.policy
    if running or seconds == 0:
        return note(measuring_text.MEASURES_NOW.format(what, before), "hint")
    sentence = measuring_text.TIME_FIRST if by_time else measuring_text.MEASURE_FIRST
    return ask(sentence.format(what, before), seconds)


def ask(sentence: str, seconds: float | None) -> str:
    """A sentence, and the button that has something measured."""
    press = button(measuring_text.run(seconds), "measure")
    return f"<div class='note hint ask'><span>{escape(sentence)}</span>{press}</div>"


def summary(account: dict[str, Any], actual: str = "", context: int = 0) -> str:
    """Size and cost of a plan, or of a model made without one, and the quality that is known.

    actual: the cells of measured perplexities, where some are to be shown. context: tokens of the
    cache whose size is told; 0 for none.
    """
    decoder = account["decoder_parameters"]
    quality = []
    if "energy_kept" in account:
        kept = numbers.percent(account["energy_kept"], 2)
        quality.append(cell("predicted energy kept", kept, text.ENERGY_OF))
    if account.get("predicted_perplexity") is not None:
        predicted = numbers.perplexity(account["predicted_perplexity"])
        quality.append(cell("predicted perplexity", predicted, how_predicted(account)))
    costs = "".join(cost_cells(account, context))
    return (
        f"<div class='cells' data-parameters='{decoder}'>{costs}</div>"
        f"<div class='cells quality'>{''.join(quality)}{actual}</div>"
    )


def how_predicted(account: dict[str, Any]) -> str:
    """The interval of a predicted perplexity where it has one, and what text it is of."""
    seen = text.PREDICTED_SEEN if account.get("predicted_held_out") is False else ""
    low, high = account.get("predicted_low"), account.get("predicted_high")
    if low is None or high is None:
        return text.PREDICTED_ALONE.format(seen)
    return text.PREDICTED_ON.format(numbers.perplexity(low), numbers.perplexity(high), seen)


def cost_cells(account: dict[str, Any], context: int = 0) -> list[str]:
    """Parameters, size, KV cache and compute against the dense model, and how much was removed.
    context: see `summary`.
    """
    parameters, megabytes, kv, flops = (
        (account[name], account[f"dense_{name}"])
        for name in ("parameters", "megabytes", "kv_bytes_per_token", "flops_per_token")
    )
    requested = account.get("requested")
    short = " over" if account["achieved"] < (requested or 0) - 5e-4 else ""
    return [
        cell("parameters", numbers.count(parameters[0]), less(*parameters), "parameters"),
        cell("size", numbers.megabytes(megabytes[0]), less(*megabytes)),
        cell("KV cache per token", f"{numbers.count(kv[0])} B", less(*kv)),
        *cache_cells(*kv, context),
        cell("compute per token", f"{numbers.short(flops[0])}FLOPs", less(*flops)),
        *time_cells(account),
        cell(
            f"removed: {text.budget(account['budget'])}",
            numbers.percent(account["achieved"], 2),
            f"requested {numbers.percent(requested)}" if requested is not None else "",
            "achieved" + short,
        ),
    ]


def cache_cells(kv: float, dense: float, context: int) -> list[str]:
    """The whole cache at a context in tokens. kv, dense: bytes per token."""
    if not context:
        return []
    sizes = [numbers.megabytes(one * context / 1e6) for one in (kv, dense)]
    return [cell(text.CACHE.format(numbers.count(context)), sizes[0], f"{sizes[1]} dense", "cache")]


def time_cells(account: dict[str, Any]) -> list[str]:
    """What the decoder layers take, where that was measured."""
    if account.get("latency") is None:
        return []
    seconds, dense = account["latency"], account["dense_latency"]
    return [cell(text.LAYER_TIME, numbers.milliseconds(seconds), less(seconds, dense))]


def actual(plan: str, figure: Figure | None, more: bool = False) -> str:
    """The cell of the perplexity measured live.

    plan: the key of what is on show; figure None: not known yet. more: whether more tokens are
    being measured.
    """
    if figure is None:
        value, below = text.MEASURING, text.MEASURED_ON
    elif figure.error or figure.perplexity is None:
        value, below = text.NOT_MEASURED, figure.error or text.NOT_FINITE
    else:
        change = less(figure.perplexity, figure.dense) if figure.dense else ""
        value, below = (
            numbers.perplexity(figure.perplexity),
            f"{change} ({numbers.perplexity(figure.dense)}) · "
            f"{'held-out ' if figure.held_out else ''}{text.protocol(briefly(figure.protocol))}",
        )
    windows = 0.0 if figure is None else figure.asked
    if more and figure is not None:
        below, windows = f"{below} · {measuring_text.MORE_NOW}", windows + 0.5
    return (
        f"<div class='cell actual' data-plan='{plan}' data-known='{figure is not None}' "
        f"data-windows='{windows}' role='status'>"
        f"<span>actual perplexity</span><b>{escape(value)}</b><i>{escape(below)}</i></div>"
    )


def briefly(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """A protocol that names a file without its folder: a narrow place has no room for that."""
    named = {key: str(protocol[key]) for key in ("source", "data") if protocol.get(key)}
    return dict(protocol) | {key: saving_text.short_name(one) for key, one in named.items()}


def uniform_key(plan: str) -> str:
    """The key of the cell that holds a plan against uniform ranks."""
    return f"{plan}-uniform"


def pinned_key(plan: str, pinned: str) -> str:
    """The key of the cell that holds a plan against a pinned one. plan, pinned: their keys."""
    return f"{plan}-{pinned}"


def least(figure: Figure | None, other: Figure | None) -> int:
    """On how many windows both were measured; 0 where either is not known."""
    return min(figure.asked, other.asked) if figure is not None and other is not None else 0


def against_uniform(plan: str, figure: Figure | None, uniform: Figure | None) -> str:
    """The cell that holds the ranks on show against uniform ones of the same method and budget,
    both measured on the same windows.
    """

    def below(change: float, error: float, kind: str) -> str:
        if figure is None or not figure.held_out:
            return text.NO_VERDICT
        sentence = {"hurts": text.HURTS, "helps": text.HELPS, "": text.NO_MATTER}[kind]
        return sentence.format(*map(numbers.percent, (abs(change), error)))

    words = text.WITH_UNIFORM, text.AGAINST_UNIFORM
    return _against(uniform_key(plan), words, figure, uniform, below)


def verdict(change: float, error: float) -> str:
    """Whether a change beyond two standard errors "hurts" or "helps"; "" for a smaller one."""
    if not abs(change) > 2 * error:  # nor where the error is not known
        return ""
    return "hurts" if change > 0 else "helps"


def against_pinned(place: str, figure: Figure | None, pinned: Figure | None) -> str:
    """The cell of the pinned plan's measured perplexity beside that of the plan on show, both
    measured on the same windows. place: see `pinned_key`.
    """

    def below(change: float, error: float, _kind: str) -> str:
        return pin_text.MEASURED_CHANGE.format(numbers.share(change, 2), numbers.percent(error, 2))

    return _against(place, (pin_text.MEASURED, ""), figure, pinned, below)


def _against(
    place: str,
    words: tuple[str, str],
    figure: Figure | None,
    other: Figure | None,
    below: Callable[[float, float, str], str],
) -> str:
    """The cell of the plan on show beside another one, whose perplexity it shows.

    words: above it, and below it until both are known; below: of the change, its standard error and
    the verdict.
    """
    known, kind, value, said = False, "", text.MEASURING, words[1]
    if figure is not None and other is not None:
        known = True
        if figure.perplexity is None or other.perplexity is None:
            value, said = text.NOT_MEASURED, (figure.error or other.error or text.NOT_FINITE)
        else:
            change, error = figure.above(other)
            value = numbers.perplexity(other.beside(figure))
            kind = verdict(change, error) if figure.held_out else ""
            said = below(change, error, kind)
    return (
        f"<div class='cell against {kind}' data-plan='{place}' data-known='{known}' "
        f"data-windows='{least(figure, other)}' role='status'>"
        f"<span>{escape(words[0])}</span><b>{escape(value)}</b><i>{escape(said)}</i></div>"
    )


def ranking(results: Sequence[tuple[float, str, str, bool, float]], held_out: bool = True) -> str:
    """Measured (perplexity, method, policy, whether on show, standard error of the share above the
    lowest) at one budget, given lowest first; nothing for fewer than two. held_out: whether that
    was on text that calibration has not seen.
    """
    if len(results) < 2:
        return ""
    best = results[0]
    now = next((one for one in results if one[3]), None)
    sentence = text.RANKED.format(best[1], best[2])
    if now is not None and now[0] / best[0] - 1 > TELLING:
        sentence += text.RANKED_HURTS.format(now[1], now[2], numbers.percent(now[0] / best[0] - 1))
    sentence = sentence if held_out else text.NOT_RANKED
    rest = [one for one in results[MOST_RANKED:] if one[3]]
    rows = "".join(
        f"<tr class='{'shown' if shown else ''}'><td>{escape(method)}</td>"
        f"<td>{escape(policy)}</td><td>{numbers.perplexity(value)}</td>"
        f"<td>{'lowest' if value == best[0] else _above(value / best[0] - 1, error)}</td></tr>"
        for value, method, policy, shown, error in [*results[:MOST_RANKED], *rest]
    )
    head = "<tr><th>method</th><th>policy</th><th>perplexity</th><th>above the lowest</th></tr>"
    return f"{note(sentence)}<table class='changes'>{head}{rows}</table>"


def _above(share: float, error: float) -> str:
    """A share ± its standard error, where that is known."""
    spread = "" if math.isnan(error) else f" ± {numbers.percent(error)}"
    return f"{numbers.share(share)}{spread}"


def changes(changed: Sequence[Change], plan: Any, alone: Any) -> str:
    """What ranks set by hand did: a sentence, and a table of them and of the largest answers of
    the policy; nothing where none is. alone: the plan of the policy with nothing set by hand.
    """
    by_hand = [one for one in changed if one.hand]
    if not by_hand:
        return ""
    energies = [numbers.percent(float(one.table()["energy"].mean()), 2) for one in (alone, plan)]
    counts = {"hand": len(by_hand), "others": len(changed) - len(by_hand)}
    sentence = hand_text.BY_HAND.format(**counts, before=energies[0], after=energies[1])
    rows = "".join(
        f"<tr data-slot='{one.layer}.{escape(one.component)}'>"
        f"<td>layer {one.layer} · {escape(one.component)}</td>"
        f"<td>{'by hand' if one.hand else 'policy'}</td><td>{before(one)} → {one.rank}</td>"
        f"<td>{numbers.signed(one.parameters)}</td></tr>"
        for one in changed[:MOST_CHANGES]
    )
    head = "<tr><th>layer and component</th><th>set</th><th>rank</th><th>parameters</th></tr>"
    more = len(changed) - MOST_CHANGES
    rest = note(f"and {more} more") if more > 0 else ""
    return f"{note(sentence)}<table class='changes'>{head}{rows}</table>{rest}"


def before(change: Change) -> str:
    """The rank that the policy alone gives."""
    return hand_text.ANOTHER_FORM if change.policy is None else str(change.policy)


def cell(label: str, value: str, below: str = "", name: str = "") -> str:
    return (
        f"<div class='cell {name}'><span>{escape(label)}</span><b>{escape(value)}</b>"
        f"<i>{escape(below)}</i></div>"
    )


def less(now: float, before: float) -> str:
    """The change against the dense model, as a share of it."""
    if not before or now == before:
        return "as dense"
    return f"{numbers.share(now / before - 1)} vs dense"


def coloured(tokens: Sequence[tuple[str, float, float]]) -> str:
    """Tokens by increase in loss. tokens: (text, dense loss, compressed loss) in nats."""
    return f"<div class='tokens'>{''.join(token(*one) for one in tokens)}</div>"


def token(words: str, dense: float, small: float, kind: str = "") -> str:
    """A token coloured by its increase in loss, in nats; kind: how it is marked beside that."""
    tip = f"dense {dense:.2f}, compressed {small:.2f}, change {small - dense:+.2f} nats"
    return (
        f"<span class='{kind}' title='{escape(tip, quote=True)}' "
        f"style='background:{shade(small - dense)}'>{escape(words).replace(LINE_END, '↵<br>')}"
        "</span>"
    )


def shade(change: float) -> str:
    """Red for an increase in loss, blue for a decrease, full at MOST_NATS."""
    # the first token has no loss
    strength = min(abs(change) / MOST_NATS, 1) if math.isfinite(change) else 0
    return f"rgba({'214,62,62' if change > 0 else '60,120,200'},{0.75 * strength:.2f})"
