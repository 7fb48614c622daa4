"""Layout of the Allocation tab, from top to bottom."""

from dataclasses import dataclass

import gradio as gr

from lrcore.compression.what_if import MODEL_SHAPES

from ... import words
from ...base import numbers
from ...figures.budget_curve import HEIGHT
from ...state.browsers import CONTEXT, CONTEXTS
from ...views import answer_markup, markup
from ...widgets import plan_address
from ...widgets.components import FLOW, button_row_html, log_slider, panel, plot, small_button
from ...widgets.expert_fold import EXPERT, expert_fold
from ...widgets.fields import Field, FieldGroup, field_group
from ...widgets.page import Page
from . import options, rank_editor
from .options import OptionSets
from .rank_editor import RankEditor
from .ranks_table import COLUMNS, EDITABLE

# Slow figures are redrawn by their `tick` event while they are on the screen, see `panel`.


@dataclass(frozen=True)
class Controls:
    """The left column. temperature: the column of the temperature controls. summary: with the
    button that measures on more tokens, whose event is `submit`.
    """

    options: OptionSets
    about: gr.HTML
    temperature: gr.Column
    summary: gr.HTML
    context: gr.Dropdown


@dataclass(frozen=True)
class Policies:
    """Every policy, layer by layer. caption: with the button that measures all methods."""

    curves: gr.HTML
    caption: gr.HTML
    ranking: gr.HTML


@dataclass(frozen=True)
class BudgetCurve:
    """Perplexity against budget."""

    figure: gr.HTML
    help: gr.HTML


@dataclass(frozen=True)
class LiveContinuation:
    """is_open: True if the part is unfolded."""

    accordion: gr.Accordion
    is_open: gr.State
    prompt: gr.Textbox


@dataclass(frozen=True)
class RanksTable:
    """help_line: has the `tick` event of the table, and the button that saves it. ranks: the ranks
    in the table; a different rank after an edit was set manually.
    """

    help_line: gr.HTML
    table: gr.Dataframe
    ranks: gr.State


@dataclass(frozen=True)
class NetworkDiagram:
    """The network with the ranks of the plan."""

    figure: gr.HTML


@dataclass(frozen=True)
class WhatIf:
    """inputs: of the other model."""

    inputs: FieldGroup
    sizes: gr.HTML


@dataclass(frozen=True)
class AllocationTab:
    """All components that handlers read or write."""

    controls: Controls
    bars: gr.HTML
    caption: gr.HTML
    link: gr.HTML
    pin: gr.Button
    editor: RankEditor
    curve: BudgetCurve
    continuation: LiveContinuation
    network: NetworkDiagram
    what_if: WhatIf
    policies: Policies
    ranks: RanksTable

    @property
    def options(self) -> OptionSets:
        """The components of the options of all methods and policies."""
        return self.controls.options


def layout(page: Page) -> AllocationTab:
    """Place the controls with the cost, which stay in view, next to the figures.

    On a narrow screen, the figures are below the controls.
    """
    with gr.Row(elem_id="cockpit"):
        with gr.Column(scale=0, min_width=340, elem_id="controls"):
            control_column = controls(page)
        with gr.Column(scale=1, min_width=320, elem_id="drawn"):
            bars = plot("bars", 218, awaited=True)
            with gr.Row(elem_id="bars-foot"):
                caption = panel("bars-caption")
                pin = small_button(words.allocation.PIN, "pin", 64, elem_classes=EXPERT)
                link = plan_address.link_button()
            return AllocationTab(
                control_column,
                bars,
                caption,
                link,
                pin,
                editor=rank_editor.layout(page),
                continuation=live_continuation(),
                curve=budget_curve(),
                network=network(),
                what_if=what_if(),
                policies=policies(),
                ranks=ranks_table(page),
            )


def controls(page: Page) -> Controls:
    """Place the size, the chosen method, the cost of the plan, and the expert settings."""
    form = page.form
    form["ratio"].render()
    form["budget"].render()
    about = panel("method-about")
    page.automatic.render()
    summary = panel("size-and-cost")
    with expert_fold("allocation", summary, plan_address.EXPERT_FIELDS, "size-and-cost"):
        with gr.Row(elem_classes="pair"):
            form["method"].render()
            form["policy"].render()
            form["target"].render()
            context = cache_context()
        with gr.Column(visible=False) as temperature:
            form["temperature"].render()
            log_slider("field-temperature")
            form["rule"].render()
        option_sets = options.layout()
    return Controls(option_sets, about, temperature, summary, context)


def cache_context() -> gr.Dropdown:
    """Place the choice of the tokens in the cache."""
    choices = [
        (words.allocation.TOKENS.format(numbers.count(tokens)), tokens) for tokens in CONTEXTS
    ]
    return gr.Dropdown(choices, value=CONTEXT, label=words.allocation.CONTEXT, elem_id="context")


def budget_curve() -> BudgetCurve:
    """Place the curve of predicted perplexity over budgets."""
    with gr.Accordion(words.allocation.BUDGET_CURVE, open=True):
        figure = plot("budget-curve", HEIGHT, changes=("plan", "results"))
        return BudgetCurve(figure, panel("budget-curve-help"))


def live_continuation() -> LiveContinuation:
    """Place the prompt and the continuations by both models."""
    text = words.allocation
    with gr.Accordion(text.CONTINUATION, open=True, elem_id="continued") as accordion:
        prompt = gr.Textbox(
            text.PROMPT,
            label=text.PROMPT_BOX,
            container=False,
            placeholder=text.PROMPT_BOX,
            max_lines=1,
            elem_id="continued-prompt",
        )
        panel("continuation", value=answer_markup.waiting(text.PROMPT))
    return LiveContinuation(accordion, gr.State(True), prompt)


def network() -> NetworkDiagram:
    """Place the network diagram."""
    with gr.Accordion(words.allocation.NETWORK, open=True, elem_classes=EXPERT):
        help_line = markup.note(words.allocation.NETWORK_HELP)
        figure = plot("network", 300, changes=("plan",), help_line=help_line)
    return NetworkDiagram(figure)


def what_if() -> WhatIf:
    """Place the sizes of another model with the ratios of the plan."""
    text, names = words.allocation, list(MODEL_SHAPES)
    with gr.Accordion(text.WHAT_IF, open=False, elem_id="what-if", elem_classes=EXPERT):
        choices = tuple((name, name) for name in names)
        fields = [
            Field("what-if-shape", text.WHAT_IF_MODEL, names[0], choices=choices),
            Field("what-if-context", text.CONTEXT, 8192),
            Field("what-if-config", text.WHAT_IF_CONFIG, "", text.WHAT_IF_CONFIG_INFO),
        ]
        inputs = field_group("what-if-fields", fields)
        sizes = panel("what-if-sizes", changes=("plan",))
    return WhatIf(inputs, sizes)


def policies() -> Policies:
    """Place the curves of all policies and the ranking of measured perplexities."""
    with gr.Accordion(words.allocation.POLICIES, elem_id="policies", elem_classes=EXPERT):
        curves = plot("policy-curves", 220, changes=("plan", "results"))
        caption = panel("policy-caption")
        ranking = panel("ranking", changes=("plan", "figures"))
        return Policies(curves, caption, ranking)


def ranks_table(page: Page) -> RanksTable:
    """Place the settings of calibration and rounding, and the table of ranks."""
    settings = ("calibration_mode", "refit", "rounding", "rank_multiple", "component_ratios")
    with gr.Accordion(words.allocation.RANKS_TABLE, open=False, elem_classes=[EXPERT, FLOW]):
        for name in settings:
            page.form[name].render()
        download = button_row_html({"ranks-csv": words.allocation.DOWNLOAD_RANKS})
        help_line = panel(
            "ranks-help",
            value=markup.prose(words.allocation.RANKS_HELP) + download,
            changes=("plan",),
        )
        table = gr.Dataframe(
            headers=list(COLUMNS),
            interactive=True,
            elem_id="ranks-table",
            max_height=420,
            show_search="filter",
            static_columns=[i for i, name in enumerate(COLUMNS) if name != EDITABLE],
        )
    return RanksTable(help_line, table, gr.State({}))
