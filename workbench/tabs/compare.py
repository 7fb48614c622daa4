"""Runs beside each other and beside the dense model: figures, answers, surprise, recipes."""

from collections.abc import Iterator
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from .. import markup, plots, text
from ..form import differences
from ..measure import Measure
from ..parts import LIVE, QUIET, download, listen, panel, plot, spoken
from ..runs import Run
from ..session import Session

TITLE = "Compare"
MOST_RUNS = 6
AXES = {
    "size (MB)": "megabytes",
    "parameters": "parameters",
    "KV cache (bytes per token)": "kv_bytes_per_token",
    "FLOPs per token": "flops_per_token",
}


def build(session: Session) -> None:
    chosen = gr.Dropdown([], multiselect=True, max_choices=MOST_RUNS, label="Runs", info=text.CHOOSE_RUNS, elem_id="compare-runs")
    cards = panel("cards")
    with gr.Row(elem_classes="bottom"):
        protocol = gr.Dropdown([], label="Measured on", elem_id="protocol", scale=2)
        axis = gr.Dropdown(list(AXES), value=next(iter(AXES)), label="Against", elem_id="axis")
        measure = gr.Button("Measure these runs", elem_id="measure-runs", scale=0, min_width=220)
    chart = plot("scatter", 360)
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
        frame = pd.DataFrame(rows, columns=["field", *(f"{i + 1}. {run.name}" for i, run in enumerate(runs))]) if rows else None
        words = "" if rows else text.RECIPES_EQUAL if len(runs) > 1 else text.ONE_RECIPE
        return all_cards(runs, wanted), gr.Dataframe(frame, visible=bool(rows)), markup.note(words)

    @spoken
    def draw(wanted: str | None, axis: str) -> str:
        return plots.scatter(points(session.runs.all(), wanted, AXES[axis]), axis)

    @spoken
    def start(ids: list[str], *said: Any) -> None:
        runs = picked(session, ids)
        if not runs:
            raise lrcore.InputError("No run is chosen. " + text.NO_RUNS)
        settings = Measure.settings(True, *said[1:])
        session.jobs.submit("measure", f"Measure {len(runs)} run(s)", {"runs": [run.id for run in runs], "evaluation": settings})

    listen([session.opened, session.stamp.change], choices, [chosen, protocol], [chosen, protocol], **LIVE)
    listen([chosen.change, protocol.change, session.stamp.change], show, [chosen, protocol], [cards, table, equal], **LIVE)
    listen([protocol.change, axis.change, session.stamp.change], draw, [protocol, axis], chart, **LIVE)
    measure.click(start, [chosen, *session.measure.all], None, **QUIET)


def build_answers(session: Session, chosen: gr.Dropdown) -> None:
    """One prompt, one column per model, written at the same time."""
    gr.Markdown("### Answers")
    prompt = gr.Textbox(text.PROMPT, label="Prompt", lines=2, elem_id="prompt")
    with gr.Row(elem_classes="bottom"):
        most = gr.Slider(8, 512, 96, step=8, label="New tokens", elem_id="new-tokens")
        temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature (0: likeliest)", elem_id="sampling-temperature")
        top_p = gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", elem_id="sampling-top-p")
        seed = gr.Number(0, precision=0, label="Seed", elem_id="sampling-seed", min_width=110)
        go = gr.Button("Generate", variant="primary", elem_id="generate", scale=0, min_width=130)
        stop = gr.Button("Stop", elem_id="stop-generate", scale=0, min_width=100)
    with gr.Row():
        columns = [
            gr.Textbox(label="dense", lines=9, interactive=False, elem_id=f"answer-{i}", visible=i == 0, min_width=220, buttons=["copy"])
            for i in range(MOST_RUNS + 1)
        ]

    @spoken
    def lay_out(ids: list[str], *said: Any) -> list[Any]:
        titles = [f"dense · {dense_recipe(session, ids, said).model}", *(run.name for run in picked(session, ids))]
        return [gr.Textbox(label=titles[i] if i < len(titles) else "", visible=i < len(titles), value="") for i in range(len(columns))]

    @spoken
    def answer(
        prompt: str, most: int, temperature: float, top_p: float, seed: float | None, ids: list[str], *said: Any
    ) -> Iterator[list[str]]:
        dense, runs = dense_recipe(session, ids, said), picked(session, ids)
        texts = [prompt] * (1 + len(runs)) + [""] * (MOST_RUNS - len(runs))
        yield texts
        models = [session.dense(dense), *(session.small(run) for run in runs)]
        streams = {i: lrcore.stream(model, prompt, int(most), temperature, top_p, int(seed or 0)) for i, model in enumerate(models)}
        while streams:  # a piece from each in turn: all columns grow together, and Stop takes effect after a single token
            for i, pieces in list(streams.items()):
                piece = next(pieces, None)
                if piece is None:
                    del streams[i]
                    continue
                texts[i] += piece
                yield texts

    listen([chosen.change, session.opened], lay_out, [chosen, *session.form.all], columns, **LIVE)
    inputs = [prompt, most, temperature, top_p, seed, chosen, *session.form.all]
    streaming = go.click(answer, inputs, columns, **QUIET, concurrency_limit=4)
    stop.click(None, None, None, cancels=[streaming], **QUIET)


def build_prompt_set(session: Session, chosen: gr.Dropdown) -> None:
    with gr.Accordion("A set of prompts: the answers as a table", open=False):
        prompts = gr.Textbox(text.PROMPT, label="Prompts", info="one per line", lines=4, elem_id="prompt-set")
        with gr.Row(elem_classes="bottom"):
            most = gr.Slider(8, 256, 48, step=8, label="New tokens", elem_id="set-tokens")
            temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature", elem_id="set-temperature")
            top_p = gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", elem_id="set-top-p")
            go = gr.Button("Answer all", elem_id="set-go", scale=0, min_width=130)
            give = gr.Button("CSV", elem_id="set-csv", scale=0, min_width=90)
        table = gr.Dataframe(
            headers=["prompt", "model", "answer", "tokens/s", "as dense"], interactive=False, elem_id="set-table", wrap=True
        )
        kept = gr.State("")

    @spoken
    def answer_all(prompts: str, most: int, temperature: float, top_p: float, ids: list[str], *said: Any) -> tuple[pd.DataFrame, str]:
        asked = [prompt for prompt in prompts.split("\n") if prompt.strip()]
        if not asked:
            raise lrcore.InputError("There are no prompts: write one per line.")
        runs = picked(session, ids)
        models = [session.dense(dense_recipe(session, ids, said)), *(session.small(run) for run in runs)]
        rows = lrcore.answers(models, asked, int(most), temperature, top_p)
        for row, name in zip(rows, ["dense", *(run.name for run in runs)] * len(asked), strict=True):
            row["model"] = name
        for i, run in enumerate(runs, start=1):
            own = rows[i :: len(models)]
            settings = {"max_new_tokens": int(most), "temperature": temperature, "top_p": top_p, "seed": 0}
            session.runs.add_samples(run.id, [{"prompt": r["prompt"], "text": r["answer"], "settings": settings} for r in own])
        shown = [[r["prompt"], r["model"], r["answer"], r["tokens_per_second"], "same" if r["same_as_first"] else ""] for r in rows]
        return pd.DataFrame(shown, columns=["prompt", "model", "answer", "tokens/s", "as dense"]), lrcore.answers_csv(rows)

    go.click(answer_all, [prompts, most, temperature, top_p, chosen, *session.form.all], [table, kept], api_visibility="private")
    give.click(spoken(lambda csv: download("answers.csv", csv)), kept, session.downloads, **QUIET)


def build_surprise(session: Session, chosen: gr.Dropdown) -> None:
    with gr.Accordion("Surprise, token by token", open=False):
        gr.Markdown(text.TOKENS_HELP)
        passage = gr.Textbox(text.PASSAGE, label="Text", lines=3, elem_id="passage")
        colour = gr.Button("Colour the tokens", elem_id="colour")
        out = panel("coloured")

    @spoken
    def paint(passage: str, ids: list[str], *said: Any) -> str:
        runs = picked(session, ids)
        if not runs:
            raise lrcore.InputError("No run is chosen: choose one above.")
        dense = lrcore.token_losses(session.dense(dense_recipe(session, ids, said)), passage)
        blocks = []
        for run in runs:
            small = lrcore.token_losses(session.small(run), passage)
            tokens = [(token, before, now) for (token, before), (_, now) in zip(dense, small, strict=True)]
            rise = sum(now - before for _, before, now in tokens[1:]) / max(len(tokens) - 1, 1)  # nothing predicts the first token
            blocks.append(f"<h4>{markup.escape(run.name)}: {rise:+.3f} nats per token</h4>{markup.coloured(tokens)}")
        return "".join(blocks)

    colour.click(paint, [passage, chosen, *session.form.all], out, api_visibility="private")


def picked(session: Session, ids: list[str] | None) -> list[Run]:
    known = set(session.runs.ids())
    return [session.runs.get(run_id) for run_id in ids or [] if run_id in known]


def dense_recipe(session: Session, ids: list[str], said: Any) -> lrcore.Recipe:
    """The dense model of the first chosen run; without a run, the form's."""
    runs = picked(session, ids)
    return runs[0].recipe if runs else session.form.recipe(said)


def all_differences(runs: list[Run]) -> list[list[Any]]:
    """Rows [field, value of each run] of recipes, then of what came out; only where not all are equal."""
    measured = [row for row in lrcore.differences(runs) if ": " in row["field"]]
    said = [[row["field"].removeprefix("result: "), *map(shown, list(row.values())[1:])] for row in measured]
    return [*differences({run.id: run.recipe for run in runs}), *said]


def shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,}" if isinstance(value, int) else str(value)


def key_of(run: Run, evaluation: dict[str, Any]) -> str:
    return f"{run.recipe.model}: {text.protocol(evaluation['protocol'])}"


def evaluation_of(run: Run, wanted: str | None) -> dict[str, Any] | None:
    return next((one for one in run.evaluations if key_of(run, one) == wanted), run.evaluations[-1] if run.evaluations else None)


def all_cards(runs: list[Run], wanted: str | None) -> str:
    """The dense model first, then each run with its deltas against it."""
    if not runs:
        return markup.note(text.NO_RUNS, "hint")
    first = runs[0].report["summary"]
    one = evaluation_of(runs[0], wanted)
    plain = [
        markup.cell("perplexity", f"{one['dense_perplexity']:.4f}" if one and one["dense_perplexity"] else "not measured"),
        markup.cell("size", text.megabytes(first["dense_megabytes"])),
        markup.cell("KV cache per token", f"{text.count(first['dense_kv_bytes_per_token'])} B"),
        markup.cell("compute per token", f"{text.short(first['dense_flops_per_token'])}FLOPs"),
    ]
    cards = [markup.card(f"dense · {runs[0].recipe.model}", plain, text.protocol(one["protocol"]) if one else "")]
    return "<div class='cards'>" + "".join([*cards, *(run_card(run, evaluation_of(run, wanted)) for run in runs)]) + "</div>"


def run_card(run: Run, one: dict[str, Any] | None) -> str:
    s = run.report["summary"]
    value, before = (one["perplexity"], one["dense_perplexity"]) if one else (None, None)
    kv, flops = "kv_bytes_per_token", "flops_per_token"
    change = markup.less(value, before) if value and before else ""
    cells = [
        markup.cell("perplexity", f"{value:.4f}" if value else "not measured", change),
        markup.cell("size", text.megabytes(s["megabytes"]), markup.less(s["megabytes"], s["dense_megabytes"])),
        markup.cell("KV cache per token", f"{text.count(s[kv])} B", markup.less(s[kv], s[f"dense_{kv}"])),
        markup.cell("compute per token", f"{text.short(s[flops])}FLOPs", markup.less(s[flops], s[f"dense_{flops}"])),
    ]
    if one and one.get("kl") is not None:
        cells.append(markup.cell("KL to dense", f"{one['kl']:.4f}", f"likeliest token the same at {one['top1']:.1%}"))
    foot = text.protocol(one["protocol"]) if one else ""
    return markup.card(run.name, cells, foot + ("" if not one or one.get("same_base", True) else f". {text.OTHER_BASE}"))


def points(runs: list[Run], wanted: str | None, axis: str) -> list[dict[str, Any]]:
    """All runs measured under one protocol, and their dense model."""
    found = []
    for run in runs:
        one = next((one for one in run.evaluations if key_of(run, one) == wanted and one["perplexity"]), None)
        if one is None:
            continue
        s = run.report["summary"]
        if not found and one["dense_perplexity"]:
            found.append(
                {"name": "dense", "method": "dense", "x": s[f"dense_{axis}"], "y": one["dense_perplexity"], "note": wanted, "id": ""}
            )
        note = f"{run.recipe.policy}, {s['achieved']:.1%} {s['budget']} removed"
        found.append({"name": run.name, "method": run.recipe.method, "x": s[axis], "y": one["perplexity"], "note": note, "id": run.id})
    return found
