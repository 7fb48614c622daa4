"""The points of the chart as files: CSV, Markdown, LaTeX."""

import csv
import io
from collections.abc import Sequence

from ...figures.comparison import Panel, Point, dominating
from .forms import latex

FILES = {"CSV": "points.csv", "Markdown": "points.md", "LaTeX": "points.tex"}
COLUMNS = ("run", "method", "policy", "removed")
MEASURED = ("perplexity", "excess loss (nats/token)", "standard error")
BEST = "not dominated"


def rows(panel: Panel) -> list[tuple[list[str], bool]]:
    """Of each point, the dense model's first, its cells, and whether no other run dominates it."""
    return [(cells(one), bool(one.run) and is_best(one, panel)) for one in panel.points]


def is_best(one: Point, panel: Panel) -> bool:
    """Whether no other run is both no larger and no worse."""
    return dominating(one, panel.runs) is None


def cells(one: Point) -> list[str]:
    error = "" if one.error is None else f"{one.error:.4f}"
    measured = [f"{one.x:.4g}", f"{one.perplexity:.4f}", f"{one.excess:.4f}", error]
    return [one.name, one.method if one.run else "", one.policy, one.label, *measured]


def as_csv(panels: Sequence[Panel], axis: str) -> str:
    """A line per point with its model and what it was measured on; numbers as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["model", "measured on", *COLUMNS, axis, *MEASURED, BEST])
    for panel in panels:
        for one in panel.points:
            made = [one.name, one.method if one.run else "", one.policy, one.label]
            figures = [one.x, one.perplexity, one.excess, "" if one.error is None else one.error]
            best = int(bool(one.run) and is_best(one, panel))
            writer.writerow([panel.model, panel.protocol, *made, *figures, best])
    return out.getvalue()


def as_markdown(panels: Sequence[Panel], axis: str) -> str:
    """A table per panel, the runs that none dominates in bold."""
    return "\n".join(markdown(panel, axis) for panel in panels)


def markdown(panel: Panel, axis: str) -> str:
    heads = [*COLUMNS, axis, *MEASURED]
    lines = [heads, ["---"] * len(heads)]
    for words, best in rows(panel):
        lines.append([f"**{words[0]}**" if best else words[0], *words[1:]])
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    table = "".join(f"| {' | '.join(line)} |\n" for line in escaped)
    return f"{panel.model}, {panel.protocol}\n\n{table}"


def as_latex(panels: Sequence[Panel], axis: str) -> str:
    """A table for booktabs per panel, the runs that none dominates in bold."""
    return "\n".join(latex_table(panel, axis) for panel in panels)


def latex_table(panel: Panel, axis: str) -> str:
    heads = [*COLUMNS, axis, *MEASURED]
    lines = [[latex(head) for head in heads]]
    for words, best in rows(panel):
        first = f"\\textbf{{{latex(words[0])}}}" if best else latex(words[0])
        lines.append([first, *map(latex, words[1:])])
    head, *body = [f"{' & '.join(line)} \\\\\n" for line in lines]
    columns = "lllr" + "r" * (1 + len(MEASURED))
    return (
        f"% {panel.model}, {panel.protocol}\n\\begin{{tabular}}{{{columns}}}\n"
        f"\\toprule\n{head}\\midrule\n{''.join(body)}\\bottomrule\n\\end{{tabular}}\n"
    )


WRITERS = {"CSV": as_csv, "Markdown": as_markdown, "LaTeX": as_latex}
