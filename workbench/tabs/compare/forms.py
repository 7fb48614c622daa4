"""A comparison as HTML, and as the files that are downloaded: CSV, Markdown, LaTeX."""

import csv
import io
from collections.abc import Sequence
from html import escape

from ... import markup, run_text, text
from .metrics import METRICS, Figures, Table

FILES = {"CSV": "comparison.csv", "Markdown": "comparison.md", "LaTeX": "comparison.tex"}
LATEX = {one: f"\\{one}" for one in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "→": "$\\rightarrow$",
    "·": "$\\cdot$",
    "−": "$-$",
    "±": "$\\pm$",
    "…": "\\dots{}",
    "\u202f": "\\,",
}


def html(tables: Sequence[Table]) -> str:
    """Every table, and buttons that save them."""
    if not tables:
        return markup.note(text.NO_RUNS, "hint")
    return "".join(map(table_html, tables)) + saves()


def saves() -> str:
    """A button for each form of a file."""
    buttons = "".join(markup.button(form, "save", form=form) for form in FILES)
    return f"<p class='saves'>{buttons}</p>"


def table_html(table: Table) -> str:
    """Metrics down, models across, the best of the runs in bold, what changed beneath."""
    heads = "".join(f"<th scope='col'>{escape(one.title)}</th>" for one in models(table))
    rows = "".join(
        f"<tr><th scope='row'>{escape(METRICS[name].label)}</th>"
        f"{''.join(cell(table, name, one) for one in models(table))}</tr>"
        for name in table.rows
    )
    return (
        "<div class='compared' tabindex='0' role='region' aria-label='Comparison'><table>"
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        + "".join(map(markup.note, notes(table)))
    )


def models(table: Table) -> tuple[Figures, ...]:
    return (table.dense, *table.runs)


def notes(table: Table) -> list[str]:
    """What the models were measured on: once where it is the same for all."""
    known = [one for one in models(table) if one.note]
    if len({one.note for one in known}) < 2:
        return [one.note for one in known[:1]]
    return [f"{one.title}: {one.note}" for one in known]


def cell(table: Table, name: str, one: Figures) -> str:
    shown = escape(words(name, one))
    before = one.dense.get(name, table.dense.values.get(name))
    if table.is_best(name, one):
        shown = f"<b>{shown}</b>"
    now, below = one.values.get(name), ""
    if one is not table.dense and now is not None and before and name != "top1":
        below = f"<i>{escape(markup.less(now, before))}</i>"
    return f"<td>{shown}{below}</td>"


def words(name: str, one: Figures) -> str:
    """A value ± its standard error."""
    if name not in one.values:
        return text.NOT_MEASURED if name == "perplexity" else "–"
    error = one.errors.get(name)
    return METRICS[name].shown(one.values[name]) + (f" ± {error:.4f}" if error is not None else "")


def as_csv(tables: Sequence[Table]) -> str:
    """One line per metric, one column per model; numbers as they are, and their errors."""
    out = io.StringIO()
    writer, columns = (
        csv.writer(out, lineterminator="\n"),
        [one for t in tables for one in models(t)],
    )
    writer.writerow(["metric", *(one.title for one in columns)])
    for name in [name for name in METRICS if any(name in one.values for one in columns)]:
        writer.writerow([METRICS[name].label, *(one.values.get(name, "") for one in columns)])
        if any(name in one.errors for one in columns):
            label = f"{METRICS[name].label}: {run_text.ERROR}"
            writer.writerow([label, *(one.errors.get(name, "") for one in columns)])
    return out.getvalue()


def as_markdown(tables: Sequence[Table]) -> str:
    return "\n".join(map(markdown_table, tables))


def markdown_table(table: Table) -> str:
    lines = [["", *(one.title for one in models(table))], ["---"] * (len(models(table)) + 1)]
    for name in table.rows:
        cells = [
            f"**{words(name, one)}**" if table.is_best(name, one) else words(name, one)
            for one in models(table)
        ]
        lines.append([METRICS[name].label, *cells])
    rows = "".join(
        f"| {' | '.join(c.replace('|', chr(92) + '|') for c in line)} |\n" for line in lines
    )
    return rows + "".join(f"\n{one}\n" for one in notes(table))


def as_latex(tables: Sequence[Table]) -> str:
    """Tables for booktabs."""
    return "\n".join(map(latex_table, tables))


def latex_table(table: Table) -> str:
    lines = [["", *(latex(one.title) for one in models(table))]]
    for name in table.rows:
        cells = [
            f"\\textbf{{{latex(words(name, one))}}}"
            if table.is_best(name, one)
            else latex(words(name, one))
            for one in models(table)
        ]
        lines.append([latex(METRICS[name].label), *cells])
    head, *body = [f"{' & '.join(line)} \\\\\n" for line in lines]
    comments = "".join(f"% {one}\n" for one in notes(table))
    return (
        f"{comments}\\begin{{tabular}}{{l{'r' * len(models(table))}}}\n\\toprule\n{head}\\midrule\n"
        f"{''.join(body)}\\bottomrule\n\\end{{tabular}}\n"
    )


def latex(words: str) -> str:
    return "".join(LATEX.get(one, one) for one in words)


WRITERS = {"CSV": as_csv, "Markdown": as_markdown, "LaTeX": as_latex}
