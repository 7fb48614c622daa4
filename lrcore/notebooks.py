"""What a notebook shows of a plan, an analysis or a comparison: tables, figures, progress bars.

plotly and tqdm are imported with the first figure or bar.
"""

import html
from typing import TYPE_CHECKING, Any

from .errors import unknown
from .progress import Progress

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure as Figure

RANK_MEASURES = ("effective_rank", "energy_rank", "stable_rank")
SHADES = "Blues"  # darker: more of the full rank
BAR, ROW, HEAD = 110, 34, 130  # pixels: a plot of bars, a row of cells, title and axis of a figure
MOST_LAYERS = 16  # with numbers in the cells


def ranks_figure(table: "pd.DataFrame", title: str) -> "Figure":
    """Bars of the share of the full rank that every layer keeps, a plot for every component.

    table: columns layer, component, rank and full, as `RankPlan.table` gives it.
    """
    from plotly.graph_objects import Bar
    from plotly.subplots import make_subplots

    names = list(table["component"].unique())
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.04)
    for row, name in enumerate(names, 1):
        own = table[table["component"] == name]
        bars = Bar(
            x=own["layer"],
            y=own["rank"] / own["full"],
            customdata=own[["rank", "full"]],
            hovertemplate=f"layer %{{x}} · {name}<br>rank %{{customdata[0]}} of "
            "%{customdata[1]} (%{y:.1%})<extra></extra>",
            marker_color="#3987c9",
        )
        figure.add_trace(bars, row=row, col=1)
        figure.update_yaxes(title=name, range=[0, 1.05], tickformat=".0%", nticks=3, row=row)
    figure.update_xaxes(title="layer", row=len(names))
    figure.update_layout(title=_small(title), height=HEAD + BAR * len(names), showlegend=False)
    return figure


def measures_figure(table: "pd.DataFrame", measure: str, title: str) -> "Figure":
    """Cells of a rank measure, layers across and names down, coloured by its share of the full
    rank.

    table: columns layer, name, full and the measure, rows of one kind, as `Analysis.table` gives
    them. Raises InputError for a measure that is none of `RANK_MEASURES`.
    """
    from plotly.graph_objects import Figure, Heatmap

    if measure not in RANK_MEASURES:
        raise unknown("rank measure", measure, RANK_MEASURES)
    names = list(table["name"].unique())
    ranks = table.pivot(index="name", columns="layer", values=measure).loc[names]
    full = table.pivot(index="name", columns="layer", values="full").loc[names]
    cells = Heatmap(
        z=ranks / full,
        x=list(ranks.columns),
        y=names,
        text=ranks.round(1),
        zmin=0,
        zmax=1,
        colorscale=SHADES,
        colorbar={"title": "of the full rank", "tickformat": ".0%"},
        texttemplate="%{text:.0f}" if len(ranks.columns) <= MOST_LAYERS else None,
        hovertemplate="layer %{x} · %{y}<br>%{text} (%{z:.1%} of the full rank)<extra></extra>",
    )
    figure = Figure(cells)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_layout(title=_small(title), height=HEAD + ROW * len(names))
    return figure


def _small(title: str) -> dict[str, Any]:
    """A title that fits the column of a notebook."""
    return {"text": title, "font": {"size": 13}}


def html_table(title: str, table: "pd.DataFrame") -> str:
    """A data frame as HTML under its title."""
    return f"<p><b>{html.escape(title)}</b></p>{table.to_html(border=0)}"


def progress_bar() -> Progress:
    """A value for any argument `progress`: a bar per stage of the work, in a notebook as a widget,
    elsewhere as text on stderr (tqdm.auto).
    """
    from tqdm.auto import tqdm

    bars: dict[str, Any] = {}  # the one bar of the stage that goes on

    def show(stage: str, done: int, total: int) -> None:
        if done >= total and stage not in bars:
            return  # over at once, or said twice
        if stage not in bars or bars[stage].total != total or bars[stage].n > done:
            while bars:
                bars.popitem()[1].close()
            bars[stage] = tqdm(desc=stage, total=total)
        bars[stage].n = done
        bars[stage].refresh()
        if done >= total:
            bars.pop(stage).close()

    return show
