"""Points of the chart as CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Sequence

from ...figures.comparison import Panel, Point, dominating
from .comparison_table import latex

FILES = {"CSV": "points.csv", "Markdown": "points.md", "LaTeX": "points.tex"}
COLUMNS = ("run", "method", "policy", "removed")
MEASURED = ("perplexity", "excess loss (nats/token)", "standard error")
NOT_DOMINATED = "not dominated"


def rows(panel: Panel) -> list[tuple[list[str], bool]]:
    """Return the cells of each point, and whether it is a run that no other run dominates."""
    return [(cells(point), is_front_run(point, panel)) for point in panel.points]


def is_front_run(point: Point, panel: Panel) -> bool:
    """Return whether a point is a run, and no other run is both no larger and no worse."""
    return bool(point.run) and dominating(point, panel.runs) is None


def cells(point: Point) -> list[str]:
    """Return the cells of a point, rounded."""
    error = "" if point.error is None else f"{point.error:.4f}"
    measured = [f"{point.x:.4g}", f"{point.perplexity:.4f}", f"{point.excess:.4f}", error]
    return [*names(point), *measured]


def names(point: Point) -> list[str]:
    """Return run, method, policy and removed fraction."""
    return [point.name, point.method if point.run else "", point.policy, point.label]


def as_csv(panels: Sequence[Panel], axis: str) -> str:
    """Return a line per point with model and protocol, and unrounded numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["model", "measured on", *COLUMNS, axis, *MEASURED, NOT_DOMINATED])
    for panel in panels:
        for point in panel.points:
            error = "" if point.error is None else point.error
            figures = [point.x, point.perplexity, point.excess, error]
            on_front = int(is_front_run(point, panel))
            writer.writerow([panel.model, panel.protocol, *names(point), *figures, on_front])
    return out.getvalue()


def as_markdown(panels: Sequence[Panel], axis: str) -> str:
    """Return a table per panel, with the runs that no other run dominates in bold."""
    return "\n".join(markdown(panel, axis) for panel in panels)


def markdown(panel: Panel, axis: str) -> str:
    """Return a panel as a Markdown table."""
    heads = [*COLUMNS, axis, *MEASURED]
    lines = [heads, ["---"] * len(heads)]
    for (name, *figures), on_front in rows(panel):
        lines.append([f"**{name}**" if on_front else name, *figures])
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    table = "".join(f"| {' | '.join(line)} |\n" for line in escaped)
    return f"{panel.model}, {panel.protocol}\n\n{table}"


def as_latex(panels: Sequence[Panel], axis: str) -> str:
    """Return a table per panel for the package booktabs, with front runs in bold."""
    return "\n".join(latex_table(panel, axis) for panel in panels)


def latex_table(panel: Panel, axis: str) -> str:
    """Return a panel as a LaTeX table."""
    heads = [*COLUMNS, axis, *MEASURED]
    lines = [[latex(head) for head in heads]]
    for (name, *figures), on_front in rows(panel):
        title = f"\\textbf{{{latex(name)}}}" if on_front else latex(name)
        lines.append([title, *map(latex, figures)])
    head, *body = [f"{' & '.join(line)} \\\\\n" for line in lines]
    columns = "lllr" + "r" * (1 + len(MEASURED))
    return (
        f"% {panel.model}, {panel.protocol}\n\\begin{{tabular}}{{{columns}}}\n"
        f"\\toprule\n{head}\\midrule\n{''.join(body)}\\bottomrule\n\\end{{tabular}}\n"
    )


WRITERS = {"CSV": as_csv, "Markdown": as_markdown, "LaTeX": as_latex}
