"""What the models answer: one prompt in columns that grow together, and a set of prompts as a
table.
"""

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from . import text
from .parts import LIVE, QUIET, download, listen, spoken
from .runs import MOST_RUNS, dense_recipe, picked
from .session import Session

FRAME = 0.05  # seconds between two states of answers that grow


def build_answers(session: Session, chosen: gr.Dropdown) -> None:
    """One prompt, one column per model, written at the same time."""
    gr.Markdown("### Answers")
    prompt = gr.Textbox(text.PROMPT, label="Prompt", lines=2, elem_id="prompt")
    with gr.Row(elem_classes="bottom"):
        most = gr.Slider(8, 512, 96, step=8, label="New tokens", elem_id="new-tokens")
        temperature = gr.Slider(
            0, 2, 0, step=0.05, label="Temperature (0: likeliest)", elem_id="sampling-temperature"
        )
        top_p = gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", elem_id="sampling-top-p")
        seed = gr.Number(0, precision=0, label="Seed", elem_id="sampling-seed", min_width=110)
        go = gr.Button("Generate", variant="primary", elem_id="generate", scale=0, min_width=130)
        stop = gr.Button("Stop", elem_id="stop-generate", scale=0, min_width=100)
    with gr.Row():
        columns = [
            gr.Textbox(
                label="dense",
                lines=9,
                interactive=False,
                elem_id=f"answer-{i}",
                visible=i == 0,
                min_width=220,
                buttons=["copy"],
            )
            for i in range(MOST_RUNS + 1)
        ]

    def titles(ids: list[str], said: Any) -> list[str]:
        return [
            f"dense · {dense_recipe(session, ids, said).model}",
            *(run.name for run in picked(session, ids)),
        ]

    @spoken
    def lay_out(ids: list[str], *said: Any) -> list[Any]:
        names = titles(ids, said)
        return [
            gr.Textbox(label=names[i] if i < len(names) else "", visible=i < len(names), value="")
            for i in range(len(columns))
        ]

    @spoken
    def answer(
        prompt: str,
        most: int,
        temperature: float,
        top_p: float,
        seed: float | None,
        ids: list[str],
        *said: Any,
    ) -> Iterator[list[Any]]:
        names, rest = titles(ids, said), [gr.skip()] * len(columns)
        yield [gr.update(value=prompt, label=name) for name in names] + rest[len(names) :]
        models = [
            session.dense(dense_recipe(session, ids, said)),
            *(session.small(run) for run in picked(session, ids)),
        ]
        settings = {
            "max_new_tokens": int(most),
            "temperature": temperature,
            "top_p": top_p,
            "seed": int(seed or 0),
        }

        def frame(found: list[Any]) -> list[Any]:
            speeds = [
                f" · {text.speed(one.tokens_per_second)}" if one.text else "" for one in found
            ]
            own = [
                gr.update(value=prompt + one.text, label=names[i] + speeds[i])
                for i, one in enumerate(found)
            ]
            return own + rest[len(own) :]

        shown, found = time.monotonic(), []
        for found in lrcore.in_turns(models, prompt, **settings):
            if (
                time.monotonic() - shown >= FRAME
            ):  # a page that is sent more than it can draw falls behind, and Stop with it
                yield frame(found)
                shown = time.monotonic()
        yield frame(found)

    listen([chosen.change, session.opened], lay_out, [chosen, *session.form.all], columns, **LIVE)
    inputs = [prompt, most, temperature, top_p, seed, chosen, *session.form.all]
    streaming = go.click(answer, inputs, columns, **QUIET, concurrency_limit=4)
    stop.click(None, None, None, cancels=[streaming], **QUIET)


def build_prompt_set(session: Session, chosen: gr.Dropdown) -> None:
    with gr.Accordion("A set of prompts: the answers as a table", open=False):
        prompts = gr.Textbox(
            text.PROMPT, label="Prompts", info="one per line", lines=4, elem_id="prompt-set"
        )
        with gr.Row(elem_classes="bottom"):
            most = gr.Slider(8, 256, 48, step=8, label="New tokens", elem_id="set-tokens")
            temperature = gr.Slider(
                0, 2, 0, step=0.05, label="Temperature", elem_id="set-temperature"
            )
            top_p = gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", elem_id="set-top-p")
            go = gr.Button("Answer all", elem_id="set-go", scale=0, min_width=130)
            give = gr.Button("CSV", elem_id="set-csv", scale=0, min_width=90)
        table = gr.Dataframe(
            headers=["prompt", "model", "answer", "tokens/s", "as dense"],
            interactive=False,
            elem_id="set-table",
            wrap=True,
        )
        kept = gr.State("")

    @spoken
    def answer_all(
        prompts: str, most: int, temperature: float, top_p: float, ids: list[str], *said: Any
    ) -> tuple[pd.DataFrame, str]:
        asked = [prompt for prompt in prompts.split("\n") if prompt.strip()]
        if not asked:
            raise lrcore.InputError("There are no prompts: write one per line.")
        runs = picked(session, ids)
        models = [
            session.dense(dense_recipe(session, ids, said)),
            *(session.small(run) for run in runs),
        ]
        rows = lrcore.answers(models, asked, int(most), temperature, top_p)
        for row, name in zip(
            rows, ["dense", *(run.name for run in runs)] * len(asked), strict=True
        ):
            row["model"] = name
        for i, run in enumerate(runs, start=1):
            own = rows[i :: len(models)]
            settings = {
                "max_new_tokens": int(most),
                "temperature": temperature,
                "top_p": top_p,
                "seed": 0,
            }
            session.runs.add_samples(
                run.id,
                [{"prompt": r["prompt"], "text": r["answer"], "settings": settings} for r in own],
            )
        shown = [
            [
                r["prompt"],
                r["model"],
                r["answer"],
                r["tokens_per_second"],
                "same" if r["same_as_first"] else "",
            ]
            for r in rows
        ]
        return pd.DataFrame(
            shown, columns=["prompt", "model", "answer", "tokens/s", "as dense"]
        ), lrcore.answers_csv(rows)

    go.click(
        answer_all,
        [prompts, most, temperature, top_p, chosen, *session.form.all],
        [table, kept],
        api_visibility="private",
    )
    give.click(spoken(lambda csv: download("answers.csv", csv)), kept, session.downloads, **QUIET)
