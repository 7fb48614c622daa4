"""Where the model can be compressed: a heatmap of rank measures, and the singular values behind
each cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from .. import cell_text, markup, measuring_text, saving_text, selection, text
from ..components import Slider, download, panel, plot
from ..events import (
    DRAWN,
    PRESSED,
    QUIET,
    FormData,
    bind,
    collect,
    event_data,
    form_data,
    listen,
    plain,
)
from ..figures.base import captioned
from ..figures.cell import ALL_HEADS, ALL_LAYERS, EVERY_HEAD, Cell, cell_figures
from ..figures.sensitivity import against_energy, loss_map
from ..figures.spectra import heat_figure
from ..form import START, input_values, read_recipe, try_recipe
from ..jobs import start_analysis, unmeasured_evidence
from ..keys import by_probes, calibrated
from ..page import Page
from ..selection_events import select_on_click, select_on_row
from ..sensitivity import agreement, probed_slots
from ..store import Store

TITLE = "Spectra"
LOSS = "increase"  # the measure that is no measure of a spectrum


# What the controls say as the page opens: measure, threshold, kind; head, scale.
MEASURE, CELL = ("effective_rank", 0.9, "aware"), (ALL_HEADS, "log")


@dataclass(frozen=True)
class FirstView:
    """What the page opens with; heads, layers: (label, value) to choose from."""

    heatmap: str
    help_line: str
    values: str
    energy: str
    heading: str
    heads: list[tuple[str, int]]
    layers: list[tuple[str, int]]
    table: Any


@dataclass(frozen=True)
class SpectraTab:
    measure: gr.Dropdown
    threshold: gr.Slider
    kind: gr.Radio
    help_line: gr.HTML
    heatmap: gr.HTML
    scatter: gr.HTML
    heading: gr.HTML
    head: gr.Dropdown
    beside: gr.Dropdown
    scale: gr.Radio
    values: gr.HTML
    energy: gr.HTML
    table: gr.Dataframe
    csv: gr.Button
    heatmap_controls: FormData
    cell_controls: FormData
    drawn_cell: gr.State  # the cell that a click here has drawn already


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    parts = layout(first_view(store, page.analysis_key.value))
    wire_heatmap(page, store, parts, tab)
    wire_cell(page, store, parts, tab)
    wire_table(page, store, parts)


def first_view(store: Store, key: list[Any]) -> FirstView:
    """What stands there before a listener has run: the analysis with this key."""
    measure, cell, form = [*MEASURE], [*CELL, []], input_values(START)
    heatmap, _, help_line = draw_heatmap(store, measure, key, *form)
    slot = [*selection.FIRST]
    heads, layers = head_choices(store, slot, key), layer_choices(store, key)
    curves = draw_cell(store, slot, cell, key, *form)
    table = fill_table(store, MEASURE[1], key)
    return FirstView(heatmap, help_line, *curves, heads, layers, table)


def heatmap_settings() -> tuple[gr.Dropdown, gr.Slider, gr.Radio]:
    """Measure, threshold and kind."""
    measures = [(label, name) for name, (label, *_) in text.MEASURES.items()]
    kinds, label = list(text.KINDS.items()), "Energy threshold"
    with gr.Row():
        measure = gr.Dropdown(measures, value="effective_rank", label="Measure", elem_id="measure")
        threshold = Slider(
            0.5, 0.999, 0.9, step=0.001, label=label, elem_id="threshold", visible=False
        )
        kind = gr.Radio(kinds, value="aware", label="Singular values of", elem_id="kind")
    return measure, threshold, kind


def layout(first: FirstView) -> SpectraTab:
    measure, threshold, kind = heatmap_settings()
    help_line = panel("measure-help", value=first.help_line)
    heatmap = plot("heatmap", 360, first.heatmap, awaited=True)
    scatter = plot("loss-against-energy", 320)
    with gr.Row(elem_classes="bottom"):
        heading = gr.HTML(first.heading, elem_id="cell-heading", scale=2)
        head = gr.Dropdown(
            first.heads,
            value=ALL_HEADS,
            label="Head",
            elem_id="head",
            min_width=140,
        )
        beside = gr.Dropdown(
            first.layers,
            value=[],
            multiselect=True,
            label=cell_text.BESIDE,
            elem_id="beside",
            min_width=220,
        )
        scale = gr.Radio(
            ["log", "linear"], value="log", label="Scale", elem_id="scale", min_width=180
        )
    with gr.Row():
        values, energy = plot("spectrum", 270, first.values), plot("energy", 270, first.energy)
    with gr.Accordion("Table", open=False):
        table = gr.Dataframe(
            first.table,
            interactive=False,
            show_search="filter",
            elem_id="spectra-table",
            max_height=420,
        )
        csv = gr.Button("Download CSV", size="sm", elem_id="spectra-csv")
    return SpectraTab(
        measure,
        threshold,
        kind,
        help_line,
        heatmap,
        scatter,
        heading,
        head,
        beside,
        scale,
        values,
        energy,
        table,
        csv,
        form_data([measure, threshold, kind], [*MEASURE]),
        form_data([head, scale, beside], [*CELL, []]),
        gr.State(None),
    )


def wire_heatmap(page: Page, store: Store, parts: SpectraTab, tab: gr.Tab) -> None:
    controls, form = parts.heatmap_controls, page.form.inputs
    inputs, outputs = [controls, page.analysis_key, *form], heatmap_outputs(parts)
    draw = bind(draw_heatmap, store)
    changed = [*(part.input for part in controls.parts), page.analysis_key.change]
    listen(changed, draw, inputs, outputs, **DRAWN)
    shown = [parts.threshold, parts.kind]
    parts.measure.input(bind(controls_of), parts.measure, shown, **DRAWN)
    # what was probed, of which method, and the budget may have changed
    changed = [page.methods_ready.change, page.factors_key.change, tab.select]
    listen(changed, bind(draw_again, store), inputs, outputs, **DRAWN)
    asked = listen([parts.help_line.select], bind(probe, store), form, None, **QUIET)
    listen(asked, draw, inputs, outputs, **DRAWN)
    select_on_click(page, parts.scatter.select)
    collect([parts.heatmap.select], [parts.cell_controls, page.form.collected])
    parts.heatmap.select(
        bind(click_cell, store),
        plain([page.selected, parts.cell_controls, page.analysis_key, *page.form.inputs]),
        [page.selected, page.selection_mark, parts.drawn_cell, parts.beside, *cell_outputs(parts)],
        **PRESSED,
    )


def wire_cell(page: Page, store: Store, parts: SpectraTab, tab: gr.Tab) -> None:
    drawn, outputs = parts.drawn_cell, cell_outputs(parts)
    inputs = [page.selected, parts.cell_controls, page.analysis_key, *page.form.inputs]
    listen(
        [page.selected.change],
        bind(draw_other_cell, store),
        [drawn, *inputs],
        [drawn, *outputs],
        **DRAWN,
    )
    listen(
        [page.selected.change, page.analysis_key.change],
        bind(list_heads, store),
        [page.selected, page.analysis_key, parts.cell_controls],
        parts.head,
        **DRAWN,
    )
    listen(
        [page.analysis_key.change],
        bind(reselect, store),
        [page.selected, page.analysis_key],
        [page.selected, page.selection_mark],
        **QUIET,
    )
    listen(
        [page.analysis_key.change],
        bind(list_layers, store),
        page.analysis_key,
        parts.beside,
        **DRAWN,
    )
    changed = [
        parts.head.input,
        parts.beside.input,
        parts.scale.input,
        page.analysis_key.change,
        tab.select,
        page.factors_key.change,
        page.choice.change,
    ]
    listen(changed, bind(draw_cell, store), inputs, outputs, **DRAWN)


def wire_table(page: Page, store: Store, parts: SpectraTab) -> None:
    inputs = [parts.threshold, page.analysis_key]
    select_on_row(page, parts.table, "name")
    listen(
        [parts.threshold.release, page.analysis_key.change],
        bind(fill_table, store),
        inputs,
        parts.table,
        **DRAWN,
    )
    parts.csv.click(bind(download_table, store), inputs, page.downloads, **QUIET)


def cell_outputs(parts: SpectraTab) -> list[gr.HTML]:
    """What `draw_cell` gives the values of."""
    return [parts.values, parts.energy, parts.heading]


def heatmap_outputs(parts: SpectraTab) -> list[gr.HTML]:
    """What `draw_heatmap` gives the values of."""
    return [parts.heatmap, parts.scatter, parts.help_line]


def draw_heatmap(store: Store, controls: list[Any], key: list | None, *values: Any) -> tuple:
    """The heatmap of the analysis with this key, the figure below it, and what its measure means.

    controls: measure, threshold, kind.
    """
    measure, threshold, kind = controls
    if measure == LOSS:
        return loss_figures(store, try_recipe(values))
    analysis = store.analysis_shown(key)
    if analysis is None:
        return "", "", markup.missing(store.awaited(try_recipe(values)), text.NOT_ANALYSED)
    figure = heat_figure(analysis.table(threshold), measure, kind, analysis.components)
    at = saving_text.THRESHOLD.format(threshold) if measure == "energy_rank" else ""
    label = f"{text.MEASURES[measure][0]}{at}, {saving_text.kind(kind)}"
    figure = captioned(figure, saving_text.source(calibrated(key), label))
    return figure, "", markup.note(text.SPECTRA_HELP[measure])


def controls_of(measure: str) -> tuple[Any, Any]:
    """Threshold and kind, on show where the measure has a use for them."""
    return gr.update(visible=measure == "energy_rank"), gr.update(visible=measure != LOSS)


def draw_again(store: Store, controls: list[Any], key: list | None, *values: Any) -> Any:
    """The heatmap, where it is the one that depends on method, budget and probes."""
    skipped = (gr.skip(),) * 3
    return draw_heatmap(store, controls, key, *values) if controls[0] == LOSS else skipped


def loss_figures(store: Store, recipe: lrcore.Recipe | None) -> tuple[str, str, str]:
    """The map of the probed increase in loss, the same against the energy lost, and what they say;
    where nothing was probed, how to have it probed. Probes that are on disk are read at once.
    """
    if recipe is None:
        return "", "", markup.note(text.NO_FACTORS, "hint")
    probed = by_probes(recipe)
    factors, lacking = store.peek_factors(probed), unmeasured_evidence(store, probed)
    if lacking is not None and (lacking.running or lacking.seconds == 0):
        if not lacking.running:
            start_analysis(store, probed)  # of what is on disk, or ships
        return "", "", markup.note(measuring_text.PROBES_NOW.format(recipe.method), "hint")
    if lacking is not None:
        return "", "", markup.ask(measuring_text.PROBE_FIRST.format(recipe.method), lacking.seconds)
    if factors is None:
        return "", "", markup.missing(store.awaited(recipe), text.NO_FACTORS)
    slots, label = probed_slots(factors, recipe.ratio), text.MEASURES[LOSS][0]
    influence, alike = factors.evidence.influence["block"], agreement(slots)
    more = "" if alike is None else measuring_text.SPECTRUM_AND_LOSS.format(len(slots), alike)
    note = markup.note(text.SPECTRA_HELP[LOSS] + more)
    caption = saving_text.of_recipe(recipe, f"{label}: {saving_text.PROBED}")
    maps = loss_map(slots, influence, label), against_energy(slots)
    return *(captioned(one, caption) for one in maps), note


def probe(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue the probes of the form's method; a choice under Allocation does not drop them."""
    start_analysis(store, by_probes(read_recipe(values)), (browser.session_hash, LOSS))


def draw_cell(
    store: Store, slot: list, controls: list[Any], key: list | None, *values: Any
) -> tuple[str, str, str]:
    """Singular values, energy lost and heading of one layer and component.

    controls: head, scale, and the layers beside it.
    """
    head, scale, beside = controls
    analysis = store.analysis_shown(key)
    if analysis is None:
        return "", "", markup.note(text.CLICK_A_CELL)
    slot, recipe = selection.nearest(analysis, slot), try_recipe(values)
    planned = recipe is not None and store.peek_factors(recipe) is not None
    rank = planned_rank(store, recipe, slot)
    cell = Cell(*slot, head, rank, beside, planned).of(analysis)
    *drawn, heading = cell_figures(analysis, cell, scale == "log")
    named = cell_text.slot(*slot, cell.head) + cell_text.beside(cell.beside, analysis.layers)
    caption = saving_text.source(calibrated(key), named)
    return *(captioned(one, caption) for one in drawn), heading


def click_cell(
    store: Store,
    event: gr.EventData,
    slot: list,
    controls: list[Any],
    key: list | None,
    *values: Any,
) -> tuple[Any, ...]:
    """A click on a cell selects it and draws it in one answer: a second trip to the server
    would be felt. A Ctrl-click on one of the same row draws its layer beside the selected one, or
    no longer.
    """
    head, scale, beside = controls
    clicked, mark = selection.select_clicked(event, slot)
    if event_data(event).get("more") and clicked[1] == slot[1]:
        beside = sorted({*beside} ^ {clicked[0]} - {slot[0]})
        drawn = draw_cell(store, slot, [head, scale, beside], key, *values)
        return gr.skip(), gr.skip(), slot, beside, *drawn
    kept = [one for one in beside if one == ALL_LAYERS]
    head = head if head == EVERY_HEAD else ALL_HEADS
    drawn = draw_cell(store, clicked, [head, scale, kept], key, *values)
    return clicked, mark, clicked, gr.skip() if kept == beside else kept, *drawn


def draw_other_cell(store: Store, drawn: list | None, slot: list, *others: Any) -> Any:
    """Draw a cell that was selected elsewhere; `drawn` is the one that a click here has drawn."""
    return (gr.skip(),) * 4 if slot == drawn else (None, *draw_cell(store, slot, *others))


def reselect(store: Store, slot: list, key: list | None) -> tuple[Any, Any]:
    """Another slot where the model that was analysed lacks the selected one."""
    return selection.select_nearest(store.analysis_shown(key), slot)


def list_heads(store: Store, slot: list, key: list | None, controls: list[Any]) -> dict[str, Any]:
    """The heads of the selected component, to look at one alone, or at each side by side."""
    choices = head_choices(store, slot, key)
    several = len(choices) > 1
    value = EVERY_HEAD if several and controls[0] == EVERY_HEAD else ALL_HEADS
    return gr.update(choices=choices, value=value, interactive=several)


def head_choices(store: Store, slot: list, key: list | None) -> list[tuple[str, int]]:
    analysis = store.analysis_shown(key)
    count = analysis.heads(*selection.nearest(analysis, slot)) if analysis is not None else 0
    each = [(cell_text.EVERY_HEAD, EVERY_HEAD)] if count else []
    each += [(cell_text.HEAD.format(i), i) for i in range(count)]
    return [(cell_text.ALL_HEADS, ALL_HEADS), *each]


def list_layers(store: Store, key: list | None) -> dict[str, Any]:
    """The layers that can be drawn beside the selected one."""
    return gr.update(choices=layer_choices(store, key))


def layer_choices(store: Store, key: list | None) -> list[tuple[str, int]]:
    analysis = store.analysis_shown(key)
    count = analysis.layers if analysis is not None else 0
    layers = [(cell_text.LAYER_NUMBER.format(i), i) for i in range(count)]
    return [(cell_text.ALL_LAYERS, ALL_LAYERS), *layers]


def fill_table(store: Store, threshold: float, key: list | None) -> Any:
    analysis = store.analysis_shown(key)
    return None if analysis is None else analysis.table(threshold).round(4)


def download_table(store: Store, threshold: float, key: list | None) -> str:
    analysis = store.analysis_shown(key)
    if analysis is None:
        raise lrcore.InputError(text.NOT_ANALYSED)
    return download("spectra.csv", analysis.table(threshold).to_csv(index=False))


def planned_rank(store: Store, recipe: lrcore.Recipe | None, slot: Sequence) -> int | None:
    """The rank that the present allocation gives this cell; None where the method does not
    allocate this name.
    """
    try:
        plan = store.plan(recipe)
    except lrcore.InputError:  # the Allocation tab says that a budget is impossible
        return None
    return None if plan is None else plan.ranks.get(tuple(slot))
