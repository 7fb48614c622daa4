"""Data frames, figures and progress bars for notebooks.

pandas, plotly and tqdm are imported with the first table, figure or bar.
"""

import html
from typing import TYPE_CHECKING, Any

from .errors import unknown
from .progress import Progress

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure as Figure

RANK_MEASURES = ("effective_rank", "energy_rank", "stable_rank")
WHOLE_SCALE = RANK_MEASURES[:2]  # stable ranks are a few percent of the full rank
SHADES = "Viridis"  # dark: a small fraction of the full rank, as on the page
BAR, ROW, HEAD = 110, 34, 130  # heights in pixels: bar plot, row of cells, title with axis
MAX_NUMBERED = 16  # layers of a figure with numbers in the cells


def frame(rows: list[dict[str, Any]]) -> "pd.DataFrame":
    """Return a data frame with a row per dict and a column per key."""
    import pandas as pd  # 65 MB, which an offloaded model needs during calibration

    return pd.DataFrame(rows)


def ranks_figure(table: "pd.DataFrame", title: str) -> "Figure":
    """Return a bar plot per component of rank / full rank by layer.

    table: columns layer, component, rank and full, as in `RankPlan.table`.
    """
    from plotly.graph_objects import Bar
    from plotly.subplots import make_subplots

    names = list(table["component"].unique())
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.04)
    for row, name in enumerate(names, 1):
        ranks = table[table["component"] == name]
        bars = Bar(
            x=ranks["layer"],
            y=ranks["rank"] / ranks["full"],
            customdata=ranks[["rank", "full"]],
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
    """Return a heat map of a rank measure by layer and name, colored by measure / full rank.

    table: columns layer, name, full and the measure, rows of a single kind, as in `Analysis.table`.
    Raises InputError for a measure that is not in `RANK_MEASURES`.
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
        zmin=0 if measure in WHOLE_SCALE else None,
        zmax=1 if measure in WHOLE_SCALE else None,
        colorscale=SHADES,
        colorbar={"title": "of the full rank", "tickformat": ".0%"},
        texttemplate="%{text:.0f}" if len(ranks.columns) <= MAX_NUMBERED else None,
        hovertemplate="layer %{x} · %{y}<br>%{text} (%{z:.1%} of the full rank)<extra></extra>",
    )
    figure = Figure(cells)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_layout(title=_small(title), height=HEAD + ROW * len(names))
    return figure


def _small(title: str) -> dict[str, Any]:
    """Return a title that fits into the column of a notebook."""
    return {"text": title, "font": {"size": 13}}


def html_table(title: str, table: "pd.DataFrame") -> str:
    """Return a data frame as HTML with a title."""
    return f"<p><b>{html.escape(title)}</b></p>{table.to_html(border=0)}"


def progress_bar() -> Progress:
    """Return a progress callback with a tqdm bar per stage: a widget in a notebook, else text on
    stderr.
    """
    from tqdm.auto import tqdm

    bars: dict[str, Any] = {}  # the bar of the current stage

    def show(stage: str, done: int, total: int) -> None:
        if done >= total and stage not in bars:
            return  # finished in a single call, or reported twice
        if stage not in bars or bars[stage].total != total or bars[stage].n > done:
            while bars:
                bars.popitem()[1].close()
            bars[stage] = tqdm(desc=stage, total=total)
        bars[stage].n = done
        bars[stage].refresh()
        if done >= total:
            bars.pop(stage).close()

    return show
