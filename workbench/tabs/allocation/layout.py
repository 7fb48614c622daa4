"""What the Allocation tab shows, from above."""

from dataclasses import dataclass

import gradio as gr

import lrcore

from ... import (
    budget_text,
    continuation_text,
    hand_text,
    markup,
    measuring_text,
    network_text,
    numbers,
    pin_text,
    plan_address,
    text,
    what_if_text,
)
from ...components import Number, Textbox, in_sight, log_slider, panel, plot, small_button
from ...figures.budget_curve import HEIGHT
from ...page import Page
from ...shown import CONTEXT, CONTEXTS
from . import rank_editor
from .rank_editor import RankEditor
from .ranks import COLUMNS, EDITABLE


@dataclass(frozen=True)
class Survey:
    """Every policy, layer by layer; sights: of the curves and of the ranking, see `in_sight`."""

    sights: tuple[gr.HTML, gr.HTML]
    curves: gr.HTML
    caption: gr.HTML
    every_method: gr.Button
    ranking: gr.HTML


@dataclass(frozen=True)
class BudgetCurve:
    """sight: see `in_sight`."""

    sight: gr.HTML
    drawn: gr.HTML
    help: gr.HTML


@dataclass(frozen=True)
class Continued:
    """opened: whether somebody looks at it."""

    accordion: gr.Accordion
    opened: gr.State
    prompt: gr.Textbox


@dataclass(frozen=True)
class RanksTable:
    """sight: see `in_sight`."""

    sight: gr.HTML
    table: gr.Dataframe
    csv: gr.Button
    shown: gr.State  # the ranks the table shows: what differs after an edit was set by hand


@dataclass(frozen=True)
class NetworkPicture:
    """sight: see `in_sight`."""

    sight: gr.HTML
    drawn: gr.HTML


@dataclass(frozen=True)
class WhatIf:
    """sight: see `in_sight`; chosen: the inputs of the other model."""

    sight: gr.HTML
    chosen: list[gr.components.Component]
    sizes: gr.HTML


@dataclass(frozen=True)
class AllocationTab:
    options: gr.Accordion
    about: gr.HTML
    temperature: gr.Column
    summary: gr.HTML
    bars: gr.HTML
    caption: gr.HTML
    link: gr.HTML
    pin: gr.Button
    more: gr.Button
    context: gr.Dropdown
    editor: RankEditor
    curve: BudgetCurve
    continued: Continued
    network: NetworkPicture
    what_if: WhatIf
    survey: Survey
    ranks: RanksTable


def layout(page: Page) -> AllocationTab:
    """Two panes on a screen that is wide enough: what is chosen with what it costs, which stays in
    view, and what is drawn of it.
    """
    with gr.Row(elem_id="cockpit"):
        with gr.Column(scale=0, min_width=340, elem_id="controls"):
            options, about, temperature, summary, more, context = controls(page)
        with gr.Column(scale=1, min_width=320, elem_id="drawn"):
            bars = plot("bars", 218, awaited=True)
            with gr.Row(elem_id="bars-foot"):
                caption = panel("bars-caption")
                pin = small_button(pin_text.PIN, "pin", 64)
                link = plan_address.link_button()
            editor, said, curve = rank_editor.layout(page), continued(), budget_curve()
            picture, other, every, table = network(), what_if(), survey(), ranks_table(page)
    return AllocationTab(
        options,
        about,
        temperature,
        summary,
        bars,
        caption,
        link,
        pin,
        more,
        context,
        editor=editor,
        curve=curve,
        continued=said,
        network=picture,
        what_if=other,
        survey=every,
        ranks=table,
    )


def controls(
    page: Page,
) -> tuple[gr.Accordion, gr.HTML, gr.Column, gr.HTML, gr.Button, gr.Dropdown]:
    form = page.form
    for names in (("method", "policy"), ("budget", "target")):
        with gr.Row(elem_classes="pair"):
            for name in names:
                form[name].render()
    form["ratio"].render()
    with gr.Column(visible=False) as temperature:
        form["temperature"].render()
        log_slider("field-temperature")
        form["rule"].render()
    summary = panel("size-and-cost")
    with gr.Row(elem_classes="pair", elem_id="readout-foot"):
        more = small_button(measuring_text.MORE, "measure-more", 160)
        context = gr.Dropdown(
            [(text.TOKENS.format(numbers.count(one)), one) for one in CONTEXTS],
            value=CONTEXT,
            label=text.CONTEXT,
            container=False,
            min_width=170,
            elem_id="context",
        )
    options = gr.Accordion(text.OPTIONS.format("the method"), open=False)
    return options, panel("method-about"), temperature, summary, more, context


def budget_curve() -> BudgetCurve:
    with gr.Accordion(budget_text.BUDGET_CURVE, open=True):
        # a run that was measured is a point in it
        sight = in_sight("curve-sight", "plan", "runs")
        return BudgetCurve(sight, plot("budget-curve", HEIGHT), panel("budget-curve-help"))


def continued() -> Continued:
    with gr.Accordion(continuation_text.TITLE, open=True, elem_id="continued") as accordion:
        prompt = Textbox(
            text.PROMPT,
            label=continuation_text.PROMPT,
            container=False,
            placeholder=continuation_text.PROMPT,
            max_lines=1,
            max_length=2000,
            elem_id="continued-prompt",
        )
        panel("continuation", value=continuation_text.waiting(text.PROMPT))
    return Continued(accordion, gr.State(True), prompt)


def network() -> NetworkPicture:
    with gr.Accordion(network_text.NETWORK, open=True):
        sight = in_sight("network-sight", "plan")
        drawn = plot("network", 300)
        panel("network-help", value=markup.note(network_text.NETWORK_HELP))
    return NetworkPicture(sight, drawn)


def what_if() -> WhatIf:
    names = list(lrcore.SHAPES)
    with gr.Accordion(what_if_text.WHAT_IF, open=False, elem_id="what-if"):
        sight = in_sight("what-if-sight", "plan", "other model")
        with gr.Row():
            shape = gr.Dropdown(
                names, value=names[0], label=what_if_text.SHAPE, elem_id="what-if-shape"
            )
            context = Number(
                8192,
                label=what_if_text.CONTEXT,
                precision=0,
                minimum=1,
                elem_id="what-if-context",
            )
            config = Textbox(
                label=what_if_text.CONFIG,
                info=what_if_text.CONFIG_INFO,
                lines=1,
                max_lines=4,
                elem_id="what-if-config",
            )
        sizes = panel("what-if-sizes")
    return WhatIf(sight, [shape, context, config], sizes)


def survey() -> Survey:
    with gr.Accordion(text.SURVEY, open=True, elem_id="policies"):
        of_policies = in_sight("policies-sight", "plan", "methods")
        of_ranking = in_sight("ranking-sight", "plan", "figures")
        curves = plot("policy-curves", 220)
        with gr.Row():
            caption = panel("policy-caption")
            every = gr.Button(
                text.SURVEY_EVERY, size="sm", elem_id="survey", scale=0, min_width=200
            )
        return Survey((of_policies, of_ranking), curves, caption, every, panel("ranking"))


def ranks_table(page: Page) -> RanksTable:
    with gr.Accordion("Ranks by layer, and ranks set by hand", open=False):
        with gr.Row():
            for name in ("calibration", "refit", "rounding", "multiple", "component_ratios"):
                page.form[name].render()
        gr.Markdown(hand_text.OVERRIDE_HELP)
        sight = in_sight("ranks-sight", "plan")
        table = gr.Dataframe(
            headers=list(COLUMNS),
            interactive=True,
            elem_id="ranks-table",
            max_height=420,
            show_search="filter",
            static_columns=[i for i, name in enumerate(COLUMNS) if name != EDITABLE],
        )
        csv = gr.Button("Download ranks CSV", size="sm", elem_id="ranks-csv")
    return RanksTable(sight, table, csv, gr.State({}))
