"""Spectra tab: a heatmap of rank measures, and the singular values of the selected cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore
from lrcore.compression.evidence.measure import evidence_key

from .. import words
from ..figures.base import captioned
from ..figures.cell import ALL_HEADS, ALL_LAYERS, EVERY_HEAD, HeatmapCell, cell_figures
from ..figures.sensitivity import against_energy, loss_map
from ..figures.spectra import heat_figure
from ..jobs import start_analysis
from ..state.keys import probed_recipe, recipe_of_key
from ..state.sensitivity import agreement, probed_slots
from ..state.store import Store
from ..views import markup
from ..widgets import selection
from ..widgets.components import download, panel, plot
from ..widgets.events import (
    DRAWN,
    LIVE,
    PRESSED,
    QUIET,
    EventValues,
    FormData,
    bind,
    form_data,
    listen,
)
from ..widgets.form import START, input_values, read_recipe, try_recipe
from ..widgets.page import Page
from ..widgets.selection_events import select_on_click, select_on_row

TITLE = "Spectra"
LOSS = "increase"  # the only measure that is not computed from a spectrum
# Initial values of the controls: of the heatmap (measure, threshold, kind), of the cell (head,
# scale).
MEASURE, CELL = ("effective_rank", 0.9, "aware"), (ALL_HEADS, "log")


@dataclass(frozen=True)
class FirstView:
    """Initial values of the tab. heads, layers: choices as (label, value)."""

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
    """All components that handlers read or write.

    compared: the layers drawn with the selected layer. drawn_cell: the cell that a click in the
    heatmap has already drawn.
    """

    measure: gr.Dropdown
    threshold: gr.Slider
    kind: gr.Radio
    help_line: gr.HTML
    heatmap: gr.HTML
    scatter: gr.HTML
    heading: gr.HTML
    head: gr.Dropdown
    compared: gr.Dropdown
    scale: gr.Radio
    values: gr.HTML
    energy: gr.HTML
    table: gr.Dataframe
    csv: gr.Button
    controls: FormData
    drawn_cell: gr.State


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers."""
    parts = layout(first_view(store, page.analysis_key.value))
    wire_heatmap(page, store, parts, tab)
    wire_cell(page, store, parts, tab)
    wire_preview(page, store, parts)
    wire_table(page, store, parts)


def first_view(store: Store, key: list[Any]) -> FirstView:
    """Return the initial values, from the analysis with this key."""
    measure, cell, form = [*MEASURE], [*CELL, []], input_values(START)
    heatmap, _, help_line = draw_heatmap(store, measure, key, *form)
    slot = [*selection.FIRST]
    heads, layers = head_choices(store, slot, key), layer_choices(store, key)
    curves = draw_cell(store, slot, cell, key, *form)
    table = fill_table(store, MEASURE[1], key)
    return FirstView(heatmap, help_line, *curves, heads, layers, table)


def heatmap_settings() -> tuple[gr.Dropdown, gr.Slider, gr.Radio]:
    """Place measure, threshold and kind."""
    measures = [(label, name) for name, (label, *_) in words.spectra.MEASURES.items()]
    with gr.Row():
        measure = gr.Dropdown(
            measures, value="effective_rank", label=words.spectra.MEASURE, elem_id="measure"
        )
        threshold = gr.Slider(
            0.5,
            0.999,
            0.9,
            step=0.001,
            label=words.spectra.ENERGY_THRESHOLD,
            elem_id="threshold",
            visible=False,
        )
        kind = gr.Radio(
            list(words.spectra.KINDS.items()),
            value="aware",
            label=words.spectra.SPECTRUM_KIND,
            elem_id="kind",
        )
    return measure, threshold, kind


def cell_settings(first: FirstView) -> tuple[gr.HTML, gr.Dropdown, gr.Dropdown, gr.Radio]:
    """Place the heading of the selected cell, head, layers to compare, and scale."""
    with gr.Row(elem_classes="bottom"):
        heading = gr.HTML(first.heading, elem_id="cell-heading", scale=2)
        head = gr.Dropdown(
            first.heads,
            value=ALL_HEADS,
            label=words.spectra.HEAD_BOX,
            elem_id="head",
            min_width=120,
        )
        compared = gr.Dropdown(
            first.layers,
            value=[],
            multiselect=True,
            label=words.spectra.COMPARE_LAYERS,
            elem_id="beside",
            min_width=270,
        )
        scale = gr.Radio(
            ["log", "linear"],
            value="log",
            label=words.spectra.SCALE,
            elem_id="scale",
            min_width=170,
        )
    return heading, head, compared, scale


def layout(first: FirstView) -> SpectraTab:
    """Place the components, with their initial values."""
    measure, threshold, kind = heatmap_settings()
    help_line = panel("measure-help", value=first.help_line)
    # one above the other; next to each other on a wide screen
    with gr.Column(elem_id="spectra-view"):
        heatmap = plot("heatmap", 360, first.heatmap, awaited=True)
        scatter = plot("loss-against-energy", 320)
        heading, head, compared, scale = cell_settings(first)
        with gr.Row():
            values = plot("spectrum", 270, first.values)
            energy = plot("energy", 270, first.energy)
    with gr.Accordion(words.spectra.TABLE, open=False):
        table = gr.Dataframe(
            first.table,
            interactive=False,
            show_search="filter",
            elem_id="spectra-table",
            max_height=420,
        )
        csv = gr.Button(words.spectra.DOWNLOAD_CSV, size="sm", elem_id="spectra-csv")
    return SpectraTab(
        measure,
        threshold,
        kind,
        help_line,
        heatmap,
        scatter,
        heading,
        head,
        compared,
        scale,
        values,
        energy,
        table,
        csv,
        form_data(
            "spectra-fields",
            [measure, threshold, kind, head, scale, compared],
            [*MEASURE, *CELL, []],
        ),
        gr.State(None),
    )


def wire_heatmap(page: Page, store: Store, parts: SpectraTab, tab: gr.Tab) -> None:
    """Redraw the heatmap after changes; a click on a cell selects and draws it."""
    controls, form = parts.controls, page.form.inputs
    inputs, outputs = [controls, page.analysis_key, *form], heatmap_outputs(parts)
    draw = bind(draw_heatmap, store)
    changed = [parts.threshold.input, parts.kind.input, page.analysis_key.change]
    listen(changed, draw, inputs, outputs, **DRAWN)
    controls_of_measure = [parts.threshold, parts.kind]
    # the probes, the method and the budget may have changed
    changed = [page.methods_ready.change, page.factors_key.change, tab.select]
    chosen = gr.State(False)  # whether a person chose the measure
    by_measure = [chosen, *controls_of_measure, *outputs]
    listen([parts.measure.input], bind(choose_measure, store), inputs, by_measure, **DRAWN)
    redrawn = [parts.measure, *controls_of_measure, *outputs]
    listen(changed, bind(redraw_loss, store), [chosen, *inputs], redrawn, **DRAWN)
    listen([parts.help_line.select], bind(probe_and_draw, store), inputs, outputs, **DRAWN)
    select_on_click(page, parts.scatter.select)
    listen(
        [parts.heatmap.select],
        bind(click_cell, store),
        [page.selected, parts.controls, page.analysis_key, *form],
        [
            page.selected,
            page.selection_mark,
            parts.drawn_cell,
            parts.compared,
            *cell_outputs(parts),
        ],
        **PRESSED,
    )


def wire_preview(page: Page, store: Store, parts: SpectraTab) -> None:
    """Preview the cell on which the pointer or the keyboard rests."""
    inputs = [page.selected, parts.controls, page.analysis_key, *page.form.inputs]
    draw = bind(preview_cell, store)
    listen([parts.heatmap.focus], draw, inputs, cell_outputs(parts), **LIVE)


def wire_cell(page: Page, store: Store, parts: SpectraTab, tab: gr.Tab) -> None:
    """Redraw the selected cell, and list the heads and the layers of the model."""
    drawn_cell, outputs = parts.drawn_cell, cell_outputs(parts)
    inputs = [page.selected, parts.controls, page.analysis_key, *page.form.inputs]
    listen(
        [page.selected.change],
        bind(draw_other_cell, store),
        [drawn_cell, *inputs],
        [drawn_cell, *outputs],
        **DRAWN,
    )
    listen(
        [page.selected.change, page.analysis_key.change],
        bind(list_heads, store),
        [page.selected, page.analysis_key, parts.controls],
        parts.head,
        **DRAWN,
    )
    listen(
        [page.analysis_key.change],
        bind(fit_model, store),
        [page.selected, page.analysis_key],
        [page.selected, page.selection_mark, parts.compared],
        **DRAWN,
    )
    changed = [
        parts.head.input,
        parts.compared.input,
        parts.scale.input,
        page.analysis_key.change,
        tab.select,
        page.factors_key.change,
        page.choice.change,
    ]
    listen(changed, bind(draw_cell, store), inputs, outputs, **DRAWN)


def wire_table(page: Page, store: Store, parts: SpectraTab) -> None:
    """Fill the table of measures and offer the download."""
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
    """Return the components of the values that `draw_cell` returns."""
    return [parts.values, parts.energy, parts.heading]


def heatmap_outputs(parts: SpectraTab) -> list[gr.HTML]:
    """Return the components of the values that `draw_heatmap` returns."""
    return [parts.heatmap, parts.scatter, parts.help_line]


def draw_heatmap(store: Store, controls: list[Any], key: list | None, *values: Any) -> tuple:
    """Return the heatmap of the analysis with this key, the figure below it, and an explanation.

    controls: measure, threshold, kind.
    """
    measure, threshold, kind, *_ = controls
    if measure == LOSS:
        return loss_figures(store, try_recipe(values))
    analysis = store.analysis_by_key(key)
    if analysis is None:
        return (
            "",
            "",
            markup.missing(store.waiting_jobs(try_recipe(values)), words.spectra.NOT_ANALYZED),
        )
    figure = heat_figure(analysis.table(threshold), measure, kind, analysis.components)
    suffix = words.spectra.AT_THRESHOLD.format(threshold) if measure == "energy_rank" else ""
    label = f"{words.spectra.MEASURES[measure][0]}{suffix}, {words.spectra.kind_name(kind)}"
    figure = captioned(figure, words.spectra.source_caption(recipe_of_key(key), label))
    return figure, "", markup.note(words.spectra.MEASURE_HELP[measure])


def choose_measure(store: Store, controls: list[Any], *values: Any) -> tuple[Any, ...]:
    """Return True for a measure that a person chose, the updates of its controls, and figures."""
    return True, *show_controls(controls[0]), *draw_heatmap(store, controls, *values)


def show_controls(measure: str) -> tuple[Any, Any]:
    """Return threshold and kind, visible if they apply to the measure."""
    return gr.update(visible=measure == "energy_rank"), gr.update(visible=measure != LOSS)


def redraw_loss(
    store: Store, is_chosen: bool, controls: list[Any], key: list | None, *values: Any
) -> Any:
    """Redraw the map of the increase in loss, which depends on method, budget and probes.

    Until a person chooses a measure, it is the increase in loss once the chosen policy has probed
    the slots. Returns the measure, the updates of its controls, and the figures.
    """
    measure, *settings = controls
    if not is_chosen:
        recipe = try_recipe(values)
        is_probed = recipe is not None and store.peek_factors(probed_recipe(recipe)) is not None
        by_policy = is_probed and "probes" in evidence_key(recipe)
        measure = LOSS if by_policy or (is_probed and measure == LOSS) else MEASURE[0]
    if measure == controls[0] != LOSS:
        return (gr.skip(),) * 6
    figures = draw_heatmap(store, [measure, *settings], key, *values)
    return (measure, *show_controls(measure), *figures)


def loss_figures(store: Store, recipe: lrcore.Recipe | None) -> tuple[str, str, str]:
    """Return the map of the increase in loss, the plot against the lost energy, and a note.

    Without probes, the note has a button that starts them. Probes on disk are read at once.
    """
    if recipe is None:
        return "", "", markup.note(words.spectra.NO_FACTORS, "hint")
    probed = probed_recipe(recipe)
    factors, missing = store.peek_factors(probed), store.missing_evidence(probed)
    if missing is not None and (missing.is_running or missing.seconds == 0):
        if not missing.is_running:
            start_analysis(store, probed)  # reads probes on disk, or the probes of the package
        return "", "", markup.note(words.spectra.PROBES_NOW.format(recipe.method), "hint")
    if missing is not None:
        sentence = words.spectra.PROBE_FIRST.format(recipe.method)
        label = words.allocation.run_button(missing.seconds)
        return "", "", markup.measure_button(sentence, label)
    if factors is None:
        return "", "", markup.missing(store.waiting_jobs(recipe), words.spectra.NO_FACTORS)
    slots, label = probed_slots(factors, recipe.ratio), words.spectra.MEASURES[LOSS][0]
    influence, correlation = factors.evidence.influence["block"], agreement(slots)
    correlation_text = (
        ""
        if correlation is None
        else words.spectra.SPECTRUM_AND_LOSS.format(len(slots), correlation)
    )
    explanation = markup.note(words.spectra.MEASURE_HELP[LOSS] + correlation_text)
    caption = words.spectra.recipe_caption(recipe, f"{label}: {words.spectra.PROBED_NEAR}")
    maps = loss_map(slots, influence, label), against_energy(slots)
    return *(captioned(figure, caption) for figure in maps), explanation


def probe(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue the probes of the form's method.

    The job is requested in the name of this page and figure, so a later choice in the Allocation
    tab does not cancel it.
    """
    start_analysis(store, probed_recipe(read_recipe(values)), (browser.session_hash, LOSS))


def probe_and_draw(
    store: Store, browser: gr.Request, controls: list[Any], key: list | None, *values: Any
) -> tuple:
    """Queue the probes, and return the values of `draw_heatmap`."""
    probe(store, browser, *values)
    return draw_heatmap(store, controls, key, *values)


def draw_cell(
    store: Store, slot: list, controls: list[Any], key: list | None, *values: Any
) -> tuple[str, str, str]:
    """Return singular values, lost energy and heading of a slot.

    controls: head, scale, and the layers to compare with.
    """
    *_, head, scale, compared = controls
    analysis = store.analysis_by_key(key)
    if analysis is None:
        return "", "", markup.note(words.spectra.CLICK_A_CELL)
    slot, recipe = selection.nearest(analysis, slot), try_recipe(values)
    has_plan = recipe is not None and store.peek_factors(recipe) is not None
    rank = planned_rank(store, recipe, slot)
    layer, name = slot
    cell = HeatmapCell(layer, name, head, rank, compared, has_plan).of(analysis)
    *figures, heading = cell_figures(analysis, cell, scale == "log")
    title = words.spectra.slot_title(layer, name, cell.head) + words.spectra.compared_layers(
        cell.compared_layers, analysis.layers
    )
    caption = words.spectra.source_caption(recipe_of_key(key), title)
    return *(captioned(figure, caption) for figure in figures), heading


def click_cell(
    store: Store,
    event: gr.EventData,
    slot: list,
    controls: list[Any],
    key: list | None,
    *values: Any,
) -> tuple[Any, ...]:
    """Select the clicked cell and draw it, in a single answer: a second request would be slow.

    A Ctrl-click on a cell in the same row adds the layer to the compared layers, or removes it.
    """
    *_, head, scale, compared = controls
    clicked, mark = selection.select_clicked(event, slot)
    if EventValues(event).get("more") and clicked[1] == slot[1]:
        # toggles the clicked layer; the selected layer is not compared with itself
        compared = sorted({*compared} ^ {clicked[0]} - {slot[0]})
        curves = draw_cell(store, slot, [head, scale, compared], key, *values)
        return gr.skip(), gr.skip(), slot, compared, *curves
    # another cell keeps the choice "all layers", but not single layers
    still_compared = [layer for layer in compared if layer == ALL_LAYERS]
    head = head if head == EVERY_HEAD else ALL_HEADS
    curves = draw_cell(store, clicked, [head, scale, still_compared], key, *values)
    return (
        clicked,
        mark,
        clicked,
        gr.skip() if still_compared == compared else still_compared,
        *curves,
    )


def preview_cell(
    store: Store,
    event: gr.EventData,
    slot: list,
    controls: list[Any],
    key: list | None,
    *values: Any,
) -> tuple[str, str, str]:
    """Draw the cell under the pointer; after the pointer left the cells, the selected cell.

    Single layers to compare with belong to the selected cell.
    """
    custom = EventValues(event).listed("custom")
    analysis = store.analysis_by_key(key)
    if not custom or analysis is None:
        return draw_cell(store, slot, controls, key, *values)
    (layer, name), _ = selection.select_clicked(event, slot)
    layer, name = selection.nearest(analysis, [layer, name])
    *_, head, scale, compared = controls
    compared = [other for other in compared if other == ALL_LAYERS]
    *figures, _ = draw_cell(store, [layer, name], [head, scale, compared], key, *values)
    return *figures, markup.preview_heading(words.spectra.slot_title(layer, name))


def draw_other_cell(store: Store, drawn_cell: list | None, slot: list, *values: Any) -> Any:
    """Draw the selected cell, unless the click that selected it has drawn it (`drawn_cell`)."""
    return (gr.skip(),) * 4 if slot == drawn_cell else (None, *draw_cell(store, slot, *values))


def fit_model(store: Store, slot: list, key: list | None) -> tuple[Any, Any, Any]:
    """Return the values of `reselect` and `list_layers`."""
    return *reselect(store, slot, key), list_layers(store, key)


def reselect(store: Store, slot: list, key: list | None) -> tuple[Any, Any]:
    """Select another slot if the analyzed model lacks the selected slot."""
    return selection.select_nearest(store.analysis_by_key(key), slot)


def list_heads(store: Store, slot: list, key: list | None, controls: list[Any]) -> dict[str, Any]:
    """List the heads of the selected component."""
    choices = head_choices(store, slot, key)
    has_heads = len(choices) > 1
    *_, head, _, _ = controls
    value = EVERY_HEAD if has_heads and head == EVERY_HEAD else ALL_HEADS
    return gr.update(choices=choices, value=value, interactive=has_heads)


def head_choices(store: Store, slot: list, key: list | None) -> list[tuple[str, int]]:
    """Return the choices of heads: all together, each in a plot, or a single head."""
    analysis = store.analysis_by_key(key)
    count = analysis.heads(*selection.nearest(analysis, slot)) if analysis is not None else 0
    single_heads = [(words.spectra.EACH_HEAD, EVERY_HEAD)] if count else []
    single_heads += [(words.spectra.HEAD.format(i), i) for i in range(count)]
    return [(words.spectra.ALL_HEADS, ALL_HEADS), *single_heads]


def list_layers(store: Store, key: list | None) -> dict[str, Any]:
    """List the layers that can be compared with the selected layer."""
    return gr.update(choices=layer_choices(store, key))


def layer_choices(store: Store, key: list | None) -> list[tuple[str, int]]:
    """Return the choices of compared layers."""
    analysis = store.analysis_by_key(key)
    count = analysis.layers if analysis is not None else 0
    layers = [(words.spectra.LAYER.format(i), i) for i in range(count)]
    return [(words.spectra.ALL_LAYERS, ALL_LAYERS), *layers]


def fill_table(store: Store, threshold: float, key: list | None) -> Any:
    """Return the table of all measures."""
    analysis = store.analysis_by_key(key)
    return None if analysis is None else analysis.table(threshold).round(4)


def download_table(store: Store, threshold: float, key: list | None) -> str:
    """Return the table of all measures as a file to download."""
    analysis = store.analysis_by_key(key)
    if analysis is None:
        raise lrcore.InputError(words.spectra.NOT_ANALYZED)
    return download("spectra.csv", analysis.table(threshold).to_csv(index=False))


def planned_rank(store: Store, recipe: lrcore.Recipe | None, slot: Sequence) -> int | None:
    """Return the rank of a slot in the current plan; None if the plan has no such slot."""
    try:
        plan = store.plan(recipe)
    except lrcore.InputError:  # the Allocation tab shows the message
        return None
    return None if plan is None else plan.ranks.get(tuple(slot))
