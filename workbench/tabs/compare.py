"""Runs beside each other and beside the dense model: figures, answers, surprise, recipes."""

from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from .. import markup, plots, text
from ..answers import build_answers, build_prompt_set
from ..form import differences
from ..measure import Measure
from ..parts import LIVE, QUIET, listen, panel, plot, spoken
from ..runs import MOST_RUNS, Run, picked
from ..session import Session
from ..surprise import build_surprise

TITLE = "Compare"
AXES = {
    "size (MB)": "megabytes",
    "parameters": "parameters",
    "KV cache (bytes per token)": "kv_bytes_per_token",
    "FLOPs per token": "flops_per_token",
    "decode time per token (dense: 1)": "decode",
    "prefill time per token (dense: 1)": "prefill",
}
SPEEDS = ("prefill", "decode")
MOST_NAMED = 4


def build(session: Session) -> None:
    chosen = gr.Dropdown(
        [],
        multiselect=True,
        max_choices=MOST_RUNS,
        label="Runs",
        info=text.CHOOSE_RUNS,
        elem_id="compare-runs",
    )
    cards = panel("cards")
    with gr.Row(elem_classes="bottom"):
        protocol = gr.Dropdown([], label="Measured on", elem_id="protocol", scale=2)
        axis = gr.Dropdown(list(AXES), value=next(iter(AXES)), label="Against", elem_id="axis")
        measure = gr.Button(
            "Measure these runs", size="sm", elem_id="measure-runs", scale=0, min_width=180
        )
        time = gr.Button(
            "Measure their speed", size="sm", elem_id="measure-speed", scale=0, min_width=180
        )
    chart = plot("scatter", 360)
    caption = panel("scatter-caption")
    build_answers(session, chosen)
    build_prompt_set(session, chosen)
    build_surprise(session, chosen)
    with gr.Accordion("Only the differences: recipes, sizes, perplexities", open=True):
        table = gr.Dataframe(interactive=False, elem_id="recipe-differences")
        equal = panel("recipes-equal")

    def choices(now: list[str], wanted: str | None) -> tuple[Any, Any]:
        runs = session.runs.all()[::-1]
        ids = {run.id for run in runs}
        kept = [run_id for run_id in now or [] if run_id in ids] or [run.id for run in runs[:1]]
        protocols = list(dict.fromkeys(key_of(run, one) for run in runs for one in run.evaluations))
        return gr.Dropdown([(run.name, run.id) for run in runs], value=kept), gr.Dropdown(
            protocols, value=wanted if wanted in protocols else next(iter(protocols), None)
        )

    @spoken
    def show(ids: list[str], wanted: str | None) -> tuple[Any, ...]:
        runs = picked(session, ids)
        rows = all_differences(runs) if len(runs) > 1 else []
        frame = (
            pd.DataFrame(
                rows, columns=["field", *(f"{i + 1}. {run.name}" for i, run in enumerate(runs))]
            )
            if rows
            else None
        )
        words = "" if rows else text.RECIPES_EQUAL if len(runs) > 1 else text.ONE_RECIPE
        return (
            all_cards(runs, wanted, speeds(session, runs)),
            gr.Dataframe(frame, visible=bool(rows)),
            markup.note(words),
        )

    @spoken
    def draw(wanted: str | None, axis: str) -> tuple[str, str]:
        runs = session.runs.all()
        found = points(
            runs, wanted, AXES[axis], speeds(session, runs) if AXES[axis] in SPEEDS else {}
        )
        untimed = runs and not found and AXES[axis] in SPEEDS
        return plots.scatter(found, axis), markup.note(
            text.NO_SPEED if untimed else conclusion(found) if runs else ""
        )

    def asked(ids: list[str]) -> list[Run]:
        runs = picked(session, ids)
        if not runs:
            raise lrcore.InputError("No run is chosen. " + text.NO_RUNS)
        return runs

    @spoken
    def start(ids: list[str], *said: Any) -> None:
        runs, settings = asked(ids), Measure.settings(True, *said[1:])
        session.jobs.submit(
            "measure",
            f"Measure {len(runs)} run(s)",
            {"runs": [run.id for run in runs], "evaluation": settings},
        )

    @spoken
    def start_speed(ids: list[str]) -> None:
        runs = asked(ids)
        session.jobs.submit(
            "speed", f"Speed of {len(runs)} run(s)", {"runs": [run.id for run in runs]}
        )

    listen(
        [session.opened, session.stamp.change],
        choices,
        [chosen, protocol],
        [chosen, protocol],
        **LIVE,
    )
    listen(
        [chosen.change, protocol.change, session.stamp.change],
        show,
        [chosen, protocol],
        [cards, table, equal],
        **LIVE,
    )
    listen(
        [protocol.change, axis.change, session.stamp.change],
        draw,
        [protocol, axis],
        [chart, caption],
        **LIVE,
    )
    measure.click(start, [chosen, *session.measure.all], None, **QUIET)
    time.click(start_speed, chosen, None, **QUIET)


def all_differences(runs: list[Run]) -> list[list[Any]]:
    """Rows [field, value of each run] of recipes, then of what came out; only where not all are
    equal.
    """
    fields = {name for run in runs for name in run.fields}
    measured = [
        row
        for row in lrcore.differences(runs)
        if ": " in row["field"] and row["field"] not in fields
    ]
    said = [
        [row["field"].removeprefix("result: "), *map(shown, list(row.values())[1:])]
        for row in measured
    ]
    return [*differences([run.fields for run in runs]), *said]


def shown(value: Any) -> str:
    if value is None:
        return "–"
    return (
        f"{value:.4f}"
        if isinstance(value, float) and abs(value) < 1e4
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def key_of(run: Run, evaluation: dict[str, Any]) -> str:
    return f"{run.recipe.model}: {text.protocol(evaluation['protocol'])}"


def evaluation_of(run: Run, wanted: str | None) -> dict[str, Any] | None:
    return next(
        (one for one in run.evaluations if key_of(run, one) == wanted),
        run.evaluations[-1] if run.evaluations else None,
    )


def speeds(session: Session, runs: list[Run]) -> dict[str, Any]:
    """The latest speeds, {"dense", "small"}, of the runs that have any, by id."""
    found = {run.id: session.runs.results(run.id, "speed") for run in runs}
    return {run_id: own[-1] for run_id, own in found.items() if own}


def all_cards(runs: list[Run], wanted: str | None, speeds: dict[str, Any]) -> str:
    """The dense model first, then each run with its deltas against it."""
    if not runs:
        return markup.note(text.NO_RUNS, "hint")
    first = runs[0].account.to_dict()
    one = evaluation_of(runs[0], wanted)
    plain = [
        markup.cell(
            "perplexity",
            f"{one['dense_perplexity']:.4f}" if one and one["dense_perplexity"] else "not measured",
        ),
        markup.cell("size", text.megabytes(first["dense_megabytes"])),
        markup.cell("KV cache per token", f"{text.count(first['dense_kv_bytes_per_token'])} B"),
        markup.cell("compute per token", f"{text.short(first['dense_flops_per_token'])}FLOPs"),
    ]
    cards = [
        markup.card(
            f"dense · {runs[0].recipe.model}", plain, text.protocol(one["protocol"]) if one else ""
        )
    ]
    return (
        "<div class='cards'>"
        + "".join(
            [
                *cards,
                *(run_card(run, evaluation_of(run, wanted), speeds.get(run.id)) for run in runs),
            ]
        )
        + "</div>"
    )


def run_card(run: Run, one: dict[str, Any] | None, speed: dict[str, Any] | None = None) -> str:
    s = run.account.to_dict()
    value, before = (one["perplexity"], one["dense_perplexity"]) if one else (None, None)
    kv, flops = "kv_bytes_per_token", "flops_per_token"
    change = markup.less(value, before) if value and before else ""
    cells = [
        markup.cell("perplexity", f"{value:.4f}" if value else "not measured", change),
        markup.cell(
            "size",
            text.megabytes(s["megabytes"]),
            markup.less(s["megabytes"], s["dense_megabytes"]),
        ),
        markup.cell(
            "KV cache per token", f"{text.count(s[kv])} B", markup.less(s[kv], s[f"dense_{kv}"])
        ),
        markup.cell(
            "compute per token",
            f"{text.short(s[flops])}FLOPs",
            markup.less(s[flops], s[f"dense_{flops}"]),
        ),
    ]
    if one and one.get("kl") is not None:
        cells.append(
            markup.cell(
                "KL to dense", f"{one['kl']:.4f}", f"likeliest token the same at {one['top1']:.1%}"
            )
        )
    for name in SPEEDS if speed else ():
        now, before = (speed[side][name] for side in ("small", "dense"))
        cells.append(
            markup.cell(
                f"{name} speed",
                text.speed(now),
                f"{markup.less(now, before)} ({text.speed(before)})",
            )
        )
    foot = text.protocol(one["protocol"]) if one else ""
    return markup.card(
        run.name,
        cells,
        foot + ("" if not one or one.get("same_base", True) else f". {text.OTHER_BASE}"),
    )


def points(
    runs: list[Run], wanted: str | None, axis: str, speeds: dict[str, Any]
) -> list[dict[str, Any]]:
    """All runs measured under one protocol, and their dense model.

    Times are shares of the dense model's, which took turns with the run.
    """
    found = []
    for run in runs:
        one = next(
            (one for one in run.evaluations if key_of(run, one) == wanted and one["perplexity"]),
            None,
        )
        if one is None or (axis in SPEEDS and run.id not in speeds):
            continue
        s = run.account.to_dict()
        if axis in SPEEDS:
            x, dense_x = speeds[run.id]["dense"][axis] / speeds[run.id]["small"][axis], 1.0
        else:
            x, dense_x = s[axis], s[f"dense_{axis}"]
        if not found and one["dense_perplexity"]:
            found.append(
                {
                    "name": "dense",
                    "method": "dense",
                    "x": dense_x,
                    "y": one["dense_perplexity"],
                    "note": wanted,
                    "id": "",
                }
            )
        note = f"{run.policy}, {s['achieved']:.1%} {s['budget']} removed"
        found.append(
            {
                "name": run.name,
                "method": run.method,
                "x": x,
                "y": one["perplexity"],
                "note": note,
                "id": run.id,
            }
        )
    return found


def conclusion(points: list[dict[str, Any]]) -> str:
    """Which runs no other beats, and which are beaten in size and perplexity by another, in words.

    points: as `points` gives them.
    """
    runs = [point for point in points if point["id"]]
    if len(runs) < 2:
        return text.FEW_POINTS
    beaten = [
        (one["name"], other["name"])
        for one in runs
        if (other := plots.better(one, points)) is not None
    ]
    names = {name for name, _ in beaten}
    front = [point["name"] for point in runs if point["name"] not in names]
    words = text.FRONT.format(" or ".join(front[:MOST_NAMED])) if front else ""
    words += "".join(text.BEATEN.format(*pair) for pair in beaten[:MOST_NAMED])
    return words + (
        text.BEATEN_MORE.format(len(beaten) - MOST_NAMED) if len(beaten) > MOST_NAMED else ""
    )
