"""What the page says of runs: in their table, where a job ends, and beside each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import lrcore

from . import numbers, saving_text, text
from .continuation import Continuation
from .sweeps import evaluation_of

COMPARE_TAB, RUNS_TAB = "Compare", "Runs & export"

COMPARED, COMPARE_RUN, COMPARE_TICKED = "Compare", "Compare {}", "Compare ticked"
SEARCH_RUNS = "Search name, tags, base, method, policy, text"
COLUMNS_SHOWN = "Columns"
GONE = "The runs of this job have been deleted since."
ERROR = "standard error"
NO_ANSWERS = (
    "Generate, and each answer is shown here token by token: grey as far as it is the dense "
    "model's, the first other token marked, then coloured by the change in loss."
)
TOKEN_SCALE = "nats: loss of the compressed model minus the dense one's"
SCALE = (
    "nats: loss of the compressed model minus the dense one's, at each token of this answer. Grey: "
    "as dense. Outlined: the first token that differs."
)
NOT_FINITE = "not finite"
TIMES = "Times as measured{} in turns with the dense model, which took {} per token."
LEFT_OUT = (
    " Left out, without a time measured there: {}. Choose runs and press Measure their speed."
)
MOST_NAMED = 4
NO_SUCH_RUNS = "No run has all of these words."
CHOOSE_RUNS = (
    "Up to six; the dense model stands beside them. The newest are listed here, all under Runs & "
    "export."
)
TOO_MANY_CHOSEN = "{} runs are chosen already: take one out before you add another."


def rows(first: int, end: int, of: int) -> str:
    """Which rows of a table are on show, of how many; first counted from 0."""
    if not of:
        return "0 runs"
    return f"{of} run{'s' if of > 1 else ''}" if end - first == of else f"{first + 1}–{end} of {of}"


def shorter(words: str, most: int) -> str:
    """The words, or their beginning and end with … between, `most` characters in all: the end of
    a path says most.
    """
    if len(words) <= most:
        return words
    head = (most - 1) // 3
    return f"{words[:head]}…{words[len(words) - (most - 1 - head) :]}"


def outcome(run: lrcore.Run, evaluation: Mapping[str, Any] | None) -> str:
    """What came out, in one line: perplexity ± its standard error against the dense model's, and
    the size.
    """
    value = NOT_FINITE if evaluation else text.NOT_MEASURED
    if evaluation and evaluation["perplexity"]:
        value = figure(evaluation)
        before = evaluation["dense_perplexity"]
        value += f" ({numbers.share(evaluation['perplexity'] / before - 1)})" if before else ""
    return f"{made_by(run)} → {value}, {numbers.megabytes(run.account.model.megabytes)}"


def lowest(runs: Sequence[lrcore.Run], settings: lrcore.EvaluationSettings | None) -> str:
    """How many runs there are, and the outcome of that of the lowest perplexity."""
    evaluated = [(run, settings and evaluation_of(run, settings)) for run in runs]
    known = [(one["perplexity"], run, one) for run, one in evaluated if one and one["perplexity"]]
    if not known:
        return f"{len(runs)} runs"
    _, run, one = min(known, key=lambda three: three[0])
    return f"{len(runs)} runs; lowest perplexity: {outcome(run, one)}"


def figure(evaluation: Mapping[str, Any]) -> str:
    """A perplexity ± its standard error, of its difference to the dense model's on the same
    tokens.
    """
    error = evaluation.get("delta_error")
    value = evaluation["perplexity"]
    spread = "" if error is None else f" ± {numbers.perplexity(value * error)}"
    return f"{numbers.perplexity(value)}{spread}"


def made_by(run: lrcore.Run) -> str:
    """Method and ratio, and what came after."""
    return " ".join((run.method, ratio(run), *afterwards(run)))


def ratio(run: lrcore.Run) -> str:
    """The share that was to be removed; where no ranks made the run, the share that is gone."""
    account = run.account
    return f"{account.achieved if account.requested is None else account.requested:.0%}"


def afterwards(run: lrcore.Run) -> list[str]:
    """What happened to a run's model after it was made: healed, quantised."""
    words = []
    for step in run.history[1:]:
        words += ["healed"] if isinstance(step, lrcore.Healed) else []
        words += [f"{step.bits} bit"] if isinstance(step, lrcore.Quantised) else []
    return words


def divergence(answer: Continuation) -> str:
    """How far an answer is the dense model's, and what stands there instead."""
    tokens, others, begin, first = answer.tokens, answer.dense, answer.begin, answer.first
    if first >= max(len(tokens), len(others)):
        same = numbers.several(len(tokens) - begin, "token")
        return f"The same answer as the dense model's: {same}."
    same = f"The same for {numbers.several(max(0, first - begin), 'token')}"
    if first >= len(tokens) or first >= len(others):
        return f"{same}, then {'this one' if first >= len(tokens) else 'the dense one'} ends."
    rest = [small - dense for _, dense, small in tokens[first:]]
    rest_of = [[token for token, *_ in some[first:]] for some in (tokens, others)]
    one, other = map(word, rest_of)
    if one == other:  # they differ in the white space before it
        one, other = (visible(some[0]) for some in rest_of)
    change = numbers.nats(sum(rest) / len(rest))
    return f"{same}, then “{one}” in place of “{other}”; from there {change} nats per token."


def visible(token: str) -> str:
    """A token with its spaces and line ends as signs."""
    return token.replace(" ", "␣").replace("\n", "↵")


def word(tokens: Sequence[str]) -> str:
    """The word that tokens begin with: up to where white space follows."""
    return next(iter("".join(tokens).split()), "")


def times(dense: Mapping[str, Sequence[float]], device: str) -> str:
    """How the times of runs were measured. dense: of each dense model, ms per token beside each."""
    parts = []
    for model, own in dense.items():
        low, high = f"{min(own):.3g}", f"{max(own):.3g}"
        name = f" ({saving_text.short_name(model)})" if len(dense) > 1 else ""
        parts.append(f"{low if low == high else f'{low} to {high}'} ms{name}")
    return TIMES.format(f" on {device}" if device else "", ", ".join(parts))


def left_out(names: Sequence[str]) -> str:
    """Which runs have no time on show; nothing where all have."""
    if not names:
        return ""
    more = len(names) - MOST_NAMED
    return LEFT_OUT.format(
        ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    )


def agreement(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many answers of each model to a set of prompts are the first model's. A prompt that got
    none, since it fills the context, is no disagreement.

    rows: as `lrcore.answers` gives them.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    sentences = []
    for model in models[1:]:
        own = [row for row in rows if row["model"] == model and not row["error"]]
        same = sum(bool(row["same_as_first"]) for row in own)
        sentences.append(f"{model}: {same} of {len(own)} answers as the dense model's")
    return "; ".join(sentences) + ("." if sentences else "")
