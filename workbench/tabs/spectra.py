"""Where the model can be compressed: a heatmap of rank measures, and the singular values behind
each cell.
"""

import math
from typing import Any

import gradio as gr
import numpy as np

import lrcore

from .. import markup, plots, selection, text
from ..parts import LIVE, QUIET, download, listen, panel, plot, spoken
from ..session import Session

TITLE = "Spectra"


def build(session: Session) -> None:
    shown = session.shown
    with gr.Row():
        measure = gr.Dropdown(
            [(words[0], name) for name, words in text.MEASURES.items()],
            value="effective_rank",
            label="Measure",
            elem_id="measure",
        )
        threshold = gr.Slider(
            0.5, 0.999, 0.9, step=0.001, label="Energy threshold", elem_id="threshold"
        )
        kind = gr.Radio(
            list(text.KINDS.items()), value="aware", label="Singular values of", elem_id="kind"
        )
    help_line = panel("measure-help")
    heat = plot("heatmap", 360)
    cell = session.selected
    with gr.Row(elem_classes="bottom"):
        heading = gr.HTML(markup.note(text.CLICK_A_CELL), elem_id="cell-heading", scale=2)
        head = gr.Dropdown(
            [(text.ALL_HEADS, -1)], value=-1, label="Head", elem_id="head", min_width=140
        )
        scale = gr.Radio(
            ["log", "linear"], value="log", label="Scale", elem_id="scale", min_width=180
        )
    with gr.Row():
        values, energy = plot("spectrum", 330), plot("energy", 330)
    with gr.Accordion("Table", open=False):
        frame = gr.Dataframe(
            interactive=False, show_search="filter", elem_id="spectra-table", max_height=420
        )
        csv = gr.Button("Download CSV", size="sm", elem_id="spectra-csv")

    @spoken
    def draw_heat(measure: str, threshold: float, kind: str, key: list | None) -> tuple[str, str]:
        analysis = session.analysis_shown(key)
        if analysis is None:
            return "", markup.note(
                text.WORKING if session.jobs.waiting() else text.NOT_ANALYSED, "hint"
            )
        return heat_figure(analysis.table(threshold), measure, kind), markup.note(
            text.SPECTRA_HELP[measure]
        )

    @spoken
    def draw_cell(
        cell: list, head: int, scale: str, key: list | None, *said: Any
    ) -> tuple[str, str, str]:
        analysis = session.analysis_shown(key)
        if analysis is None:
            return "", "", markup.note(text.CLICK_A_CELL)
        return cell_figures(
            analysis,
            cut_rank(session, session.form.try_recipe(said), cell),
            cell,
            head,
            scale == "log",
        )

    @spoken
    def pick(
        event: gr.EventData, cell: list, scale: str, key: list | None, *said: Any
    ) -> tuple[Any, ...]:
        """A click on a cell selects it and draws it in one answer: a second trip to the server
        would be felt.
        """
        cell, mark = selection.clicked_slot(event, cell)
        return cell, mark, cell, *draw_cell(cell, -1, scale, key, *said)

    @spoken
    def draw_other(picked: list | None, cell: list, *others: Any) -> Any:
        """Draw a cell that was selected elsewhere."""
        return (gr.skip(),) * 4 if cell == picked else (None, *draw_cell(cell, *others))

    @spoken
    def heads(cell: list, key: list | None) -> gr.Dropdown:
        analysis = session.analysis_shown(key)
        many = analysis.heads(*cell) if analysis is not None else 0
        choices = [(text.ALL_HEADS, -1), *((f"Head {i}", i) for i in range(many))]
        return gr.Dropdown(choices, value=-1, interactive=bool(many))

    @spoken
    def table(threshold: float, key: list | None) -> Any:
        analysis = session.analysis_shown(key)
        return None if analysis is None else analysis.table(threshold).round(4)

    @spoken
    def give(threshold: float, key: list | None) -> str:
        analysis = session.analysis_shown(key)
        if analysis is None:
            raise lrcore.InputError(text.NOT_ANALYSED)
        return download("spectra.csv", analysis.table(threshold).to_csv(index=False))

    below, drawn = [cell, head, scale, shown, *session.form.all], [values, energy, heading]
    listen(
        [measure.input, threshold.input, kind.input, shown.change],
        draw_heat,
        [measure, threshold, kind, shown],
        [heat, help_line],
        **LIVE,
    )
    picked = gr.State(None)  # the cell that a click here has drawn already
    heat.select(
        pick, [cell, scale, shown, *session.form.all], [cell, session.mark, picked, *drawn], **QUIET
    )
    listen([cell.change], draw_other, [picked, *below], [picked, *drawn], **LIVE)
    selection.follow_rows(session, frame, "name")
    listen([cell.change, shown.change], heads, [cell, shown], head, **LIVE)
    listen(
        [
            head.input,
            scale.input,
            shown.change,
            session.tab.select,
            session.factored.change,
            session.chosen.change,
        ],
        draw_cell,
        below,
        drawn,
        **LIVE,
    )
    listen([threshold.release, shown.change], table, [threshold, shown], frame, **LIVE)
    csv.click(give, [threshold, shown], session.downloads, **QUIET)


def heat_figure(table: Any, measure: str, kind: str) -> str:
    """The heatmap of one measure.

    Rank measures are coloured as shares of the full rank, so that wide and narrow matrices compare.
    """
    rows = table[table["kind"] == kind]
    label, shade, written = text.MEASURES[measure]
    values, shades, full = {}, {}, {}
    for name, group in rows.groupby("name", sort=False):
        group = group.sort_values("layer")
        numbers = group[measure].tolist()
        values[name], full[name] = (
            [number if math.isfinite(number) else None for number in numbers],
            int(group["full"].iloc[0]),
        )
        shades[name] = [shade_of(number, measure, full[name]) for number in numbers]
    influence = rows.drop_duplicates("layer").sort_values("layer")["block_influence"].tolist()
    return plots.heatmap(list(values), values, shades, full, label, shade, influence, written)


def shade_of(number: float, measure: str, full: int) -> float | None:
    if measure != "condition":
        return number / full
    return math.log10(number) if math.isfinite(number) and number > 0 else None


def cell_figures(
    analysis: Any, cut: int | None, cell: list, head: int, log: bool
) -> tuple[str, str, str]:
    """Singular values, cumulative energy and the heading of one layer and component."""
    layer, name = cell
    heads = analysis.heads(layer, name)
    one = head if 0 <= head < heads else None
    series = [
        (label, analysis.values(layer, name, kind, one)) for label, kind in text.KINDS.items()
    ]
    shares = [(label, energy_share(values)) for label, values in series]
    # a method that selects columns or rotary pairs keeps less than the best subspace does; its own
    # figure is under Allocation
    kept = f"rank {cut} keeps at best {kept_at(shares[0][1], cut):.2%}" if cut is not None else ""
    keep = f"{layer}{name}{one}"
    title = (
        f"<h3 data-layer='{layer}' data-name='{name}'>Layer {layer} · "
        f"{name}{'' if one is None else f' · head {one}'}</h3>"
    )
    words = kept or text.NO_CUT.format(name=name)
    return (
        plots.curves(series, "singular value", log, cut, f"rank {cut}", keep, share=False),
        plots.curves(shares, "energy kept", False, cut, kept, keep + "e", share=True),
        title + markup.note(words),
    )


def energy_share(values: np.ndarray) -> np.ndarray:
    squares = np.asarray(values, dtype=np.float64) ** 2
    return np.cumsum(squares) / squares.sum() if squares.sum() > 0 else np.ones_like(squares)


def kept_at(shares: np.ndarray, rank: int) -> float:
    return float(shares[min(rank, len(shares)) - 1])


def cut_rank(session: Session, recipe: lrcore.Recipe | None, cell: list) -> int | None:
    """The rank that the present allocation gives this cell; None where the method does not
    allocate this name.
    """
    try:
        plan = session.plan(recipe)
    except lrcore.InputError:  # an impossible budget is said in the Allocation tab
        return None
    return None if plan is None else plan.ranks.get(tuple(cell))
