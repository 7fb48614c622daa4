"""The runs on disk: open, rename, delete, download, export, push."""

from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from .. import export, markup, selection, text
from ..assets import script
from ..parts import LIVE, QUIET, download, listen, panel, spoken
from ..runs import Run
from ..session import Session

TITLE = "Runs & export"
COLUMNS = (
    "name",
    "tags",
    "model",
    "method",
    "policy",
    "removed",
    "MB",
    "perplexity",
    "dense perplexity",
    "measured on",
    "id",
)


def build(session: Session) -> None:
    frame = gr.Dataframe(
        headers=list(COLUMNS),
        interactive=False,
        show_search="filter",
        elem_id="runs-table",
        max_height=360,
        visible=False,
    )
    opened, address = gr.State(""), selection.run_in_address()
    empty = panel("runs-empty")
    with gr.Column(visible=False, elem_id="run-details") as details:
        heading = panel("run-heading")
        with gr.Row(equal_height=True):
            use = gr.Button("Open in the form", variant="primary", size="sm", elem_id="run-open")
            recipe = gr.Button("Recipe", size="sm", elem_id="run-recipe")
            ranks = gr.Button("Ranks CSV", size="sm", elem_id="run-ranks")
            report = gr.Button("Report HTML", size="sm", elem_id="run-report")
        with gr.Row(elem_classes="bottom"):
            name = gr.Textbox(label="Name", elem_id="run-rename-name")
            rename = gr.Button("Rename", size="sm", scale=0, min_width=110, elem_id="run-rename")
            tags = gr.Textbox(label="Tags", info="with commas between", elem_id="run-tags")
            retag = gr.Button("Set tags", size="sm", scale=0, min_width=110, elem_id="run-retag")
            delete = gr.Button(
                "Delete", size="sm", scale=0, min_width=110, variant="stop", elem_id="run-delete"
            )
        folder = gr.Textbox(
            label="Checkpoint folder", interactive=False, buttons=["copy"], elem_id="run-folder"
        )
        with gr.Accordion("Quantise", open=False):
            gr.Markdown(text.QUANTISE_HELP)
            with gr.Row(elem_classes="bottom"):
                bits = gr.Radio([8, 4], value=8, label="Bits", elem_id="quantise-bits")
                quantise = gr.Button(
                    "Quantise", size="sm", scale=0, min_width=110, elem_id="quantise"
                )
        with gr.Accordion("Heal", open=False):
            gr.Markdown(text.HEAL_HELP)
            with gr.Row(elem_classes="bottom"):
                usual = lrcore.Healing()
                each = f"of {usual.batch} windows of {usual.seq_len} tokens"
                steps = gr.Number(
                    usual.steps,
                    label="Steps",
                    info=each,
                    precision=0,
                    minimum=1,
                    elem_id="heal-steps",
                )
                rate = gr.Number(
                    usual.lr,
                    label="Learning rate",
                    info="latents bear ten times as much",
                    minimum=0,
                    elem_id="heal-rate",
                )
                beta = gr.Number(
                    usual.beta,
                    label="Weight of the dense model's answers",
                    minimum=0,
                    elem_id="heal-beta",
                )
                channel = gr.Number(
                    0,
                    label="Rotary channel",
                    info="care alone; 0: none",
                    precision=0,
                    minimum=0,
                    elem_id="heal-channel",
                )
                mend = gr.Button("Heal", size="sm", scale=0, min_width=110, elem_id="heal")
        with gr.Accordion("Model card", open=False):
            card = gr.Markdown(elem_id="model-card")
        with gr.Accordion("Export", open=True):
            gr.Markdown(text.EXPORT_HELP)
            fit = gr.Markdown(elem_id="stock-fit")
            with gr.Row(elem_classes="bottom"):
                stock = gr.Checkbox(
                    label="Stock architecture, without code", elem_id="export-stock"
                )
                even = gr.Button(
                    "Put ranks that fit into the form",
                    size="sm",
                    scale=0,
                    min_width=240,
                    elem_id="stock-ranks",
                )
                leave = gr.Button(
                    "Export", size="sm", variant="primary", scale=0, min_width=110, elem_id="export"
                )
            exported = gr.Textbox(
                label="Exported to",
                interactive=False,
                buttons=["copy"],
                lines=1,
                elem_id="exported",
            )
            gr.Markdown(text.PUSH_HELP)
            with gr.Row(elem_classes="bottom"):
                repo = gr.Textbox(label="Repository", placeholder="owner/name", elem_id="push-repo")
                private = gr.Checkbox(True, label="Private", scale=0, min_width=120)
                push = gr.Button("Push", size="sm", scale=0, min_width=110, elem_id="push")

    def table() -> tuple[Any, str]:
        rows = run_rows(session)
        if not rows:
            return gr.Dataframe(visible=False), markup.note(text.NO_RUNS, "hint")
        return gr.Dataframe(pd.DataFrame(rows, columns=list(COLUMNS)), visible=True), ""

    def choose(event: gr.SelectData) -> tuple[str, str]:
        run_id = str(event.row_value[COLUMNS.index("id")])
        return run_id, run_id

    @spoken
    def show(run_id: str, stamp: str) -> tuple[Any, ...]:
        if run_id not in session.runs.ids():
            return (
                gr.Column(visible=False),
                *[""] * 5,
                gr.Checkbox(False),
                gr.Button(visible=False),
                "",
                "",
            )
        run = session.runs.get(run_id)
        title = (
            f"<h3>{markup.escape(run.name)}</h3>"
            + markup.readout(run.account.to_dict())
            + markup.note(text.shortened(run.history))
            + markup.note(text.sliced(run.history))
            + markup.note(text.healed(run.history))
        )
        found = lrcore.stock_of(run.history)
        possible = found is None or found.qualifies
        written = "\n".join(one["folder"] for one in session.runs.results(run_id, "export"))
        return (
            gr.Column(visible=True),
            title,
            run.name,
            ", ".join(run.tags),
            str(run.checkpoint.absolute()),
            text.stock(found, not run.ranks_csv),
            gr.Checkbox(interactive=True)
            if possible
            else gr.Checkbox(value=False, interactive=False),
            gr.Button(visible=bool(found and found["ranks"] and not found["qualifies"])),
            written,
            export.model_card(run).split("\n---\n", 1)[-1],  # the front matter is for the hub
        )

    def linked(request: gr.Request) -> tuple[Any, Any]:
        """A page opened as ?run=<id> starts at that run."""
        run_id = request.query_params.get("run", "")
        return (
            (run_id, gr.Tabs(selected=TITLE))
            if run_id in session.runs.ids()
            else (gr.skip(), gr.skip())
        )

    @spoken
    def into_form(run_id: str) -> list[Any]:
        return session.fill(session.runs.get(run_id).recipe)

    @spoken
    def set_tags(run_id: str, said: str) -> None:
        wanted, now = (
            {tag.strip() for tag in said.split(",") if tag.strip()},
            set(session.runs.get(run_id).tags),
        )
        for tag in sorted(wanted - now):
            session.runs.tag(run_id, tag)
        for tag in now - wanted:
            session.runs.untag(run_id, tag)

    @spoken
    def forget(run_id: str) -> Any:
        if not run_id:  # the reader said no
            return gr.skip()
        session.runs.delete(run_id)
        session.shelf.drop("small", run_id)
        return ""

    @spoken
    def fitting(run_id: str) -> list[Any]:
        run = session.runs.get(run_id)
        return session.fill(
            run.recipe.with_(overrides=lrcore.stock_of(run.history).to_dict()["ranks"])
        )

    @spoken
    def to_codes(run_id: str, bits: int) -> None:
        title = f"Quantise {session.runs.get(run_id).name} to {bits} bit"
        session.jobs.submit("quantise", title, {"run": run_id, "bits": bits}, once=True)

    @spoken
    def to_health(run_id: str, steps: float, rate: float, beta: float, channel: float) -> None:
        asked = {
            "steps": int(steps or 0),
            "lr": rate or 0.0,
            "beta": beta or 0.0,
            "rotary_channel": int(channel or 0),
        }
        lrcore.Healing(**asked)  # what is wrong with it is said at once
        session.jobs.submit(
            "heal",
            f"Heal {session.runs.get(run_id).name}",
            {"run": run_id, "healing": asked},
            once=True,
        )

    @spoken
    def write(run_id: str, stock: bool) -> None:
        run = session.runs.get(run_id)
        session.jobs.submit(
            "export", f"Export {run.name}", {"run": run_id, "stock": bool(stock)}, once=True
        )

    @spoken
    def send(run_id: str, stock: bool, repo: str, private: bool) -> None:
        run = session.runs.get(run_id)
        if repo.count("/") != 1:
            raise lrcore.InputError(f"'{repo}' is no repository name. Write owner/name.")
        session.jobs.submit(
            "push",
            f"Push {run.name} to {repo}",
            {"run": run_id, "stock": bool(stock), "repo": repo.strip(), "private": private},
        )

    give_recipe = spoken(
        lambda run_id: download("recipe.json", session.runs.get(run_id).recipe.to_json())
    )
    give_ranks = spoken(lambda run_id: download("ranks.csv", ranks_of(session.runs.get(run_id))))
    give_report = spoken(
        lambda run_id: download("report.html", export.report_html(session.runs.get(run_id)))
    )
    shown = [details, heading, name, tags, folder, fit, stock, even, exported, card]
    listen([session.opened, session.stamp.change], table, None, [frame, empty], **LIVE)
    frame.select(choose, None, [opened, address], **QUIET)
    listen([opened.change, session.stamp.change], show, [opened, session.stamp], shown, **LIVE)
    session.opened(linked, None, [opened, session.tabs], **QUIET)
    use.click(into_form, opened, session.filled, **QUIET)
    for button, give in ((recipe, give_recipe), (ranks, give_ranks), (report, give_report)):
        button.click(give, opened, session.downloads, **QUIET)
    rename.click(spoken(session.runs.rename), [opened, name], None, **QUIET)
    retag.click(set_tags, [opened, tags], None, **QUIET)
    delete.click(
        forget,
        opened,
        address,
        js=script("confirm-delete.js", QUESTION=text.DELETE_SURE),
        **QUIET,
    )
    quantise.click(to_codes, [opened, bits], None, **QUIET)
    mend.click(to_health, [opened, steps, rate, beta, channel], None, **QUIET)
    even.click(fitting, opened, session.filled, **QUIET)
    leave.click(write, [opened, stock], None, **QUIET)
    push.click(send, [opened, stock, repo, private], None, **QUIET)


def ranks_of(run: Run) -> str:
    """Raises InputError for a run that no ranks made."""
    if not run.ranks_csv:
        raise lrcore.InputError(text.NO_RANKS)
    return run.ranks_csv


def run_rows(session: Session) -> list[list[Any]]:
    """Newest first."""
    rows = []
    for run in reversed(session.runs.all()):
        summary, last = run.account.to_dict(), (run.evaluations or [None])[-1]
        measured = (
            [
                export.figure(last["perplexity"]),
                export.figure(last["dense_perplexity"]),
                text.protocol(last["protocol"]),
            ]
            if last
            else ["", "", ""]
        )
        removed = f"{summary['achieved']:.1%} {summary['budget']}"
        rows.append(
            [
                run.name,
                ", ".join(run.tags),
                run.recipe.model,
                run.method,
                run.policy,
                removed,
                round(summary["megabytes"], 2),
                *measured,
                run.id,
            ]
        )
    return rows
