"""Comparison of models as HTML, CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Sequence
from html import escape
from typing import Any

from ... import words
from ...base import numbers
from ...views import markup
from ...views.term_markup import marked
from ...widgets.components import button_row_html
from .metrics import METRICS, Column, Table

FILES = {"CSV": "comparison.csv", "Markdown": "comparison.md", "LaTeX": "comparison.tex"}
HEADLINE = ("megabytes", "kv_bytes_per_token", "decode")  # before: the change in perplexity
LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
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


def headline(tables: Sequence[Table]) -> str:
    """Return a row of cells per run: size, KV cache, perplexity and speed; then the button that
    saves the report.

    Several rows have the names of their runs.
    """
    pairs = [(table, column) for table in tables for column in table.runs]
    if not pairs:
        return markup.note(words.compare_and_runs.NO_RUNS, "hint")
    rows = []
    for table, column in pairs:
        name = f"<h4>{escape(column.title)}</h4>" if len(pairs) > 1 else ""
        cells = [headline_cell(table, column, metric) for metric in HEADLINE]
        rows.append(
            f"{name}<div class='cells'>{perplexity_cell(table, column)}{''.join(cells)}</div>"
        )
    report = {"comparison-report": words.compare_and_runs.COMPARISON_REPORT}
    return "".join(rows) + button_row_html(report)


def headline_cell(table: Table, column: Column, name: str) -> str:
    """Return the cell of a metric, with its change from the dense model."""
    metric, value = METRICS[name], column.values.get(name)
    if value is None:
        return markup.cell(metric.label, words.compare_and_runs.NOT_MEASURED)
    return markup.cell(metric.label, metric.as_text(value), change_text(table, name, column))


def perplexity_cell(table: Table, column: Column) -> str:
    """Return the cell of the relative change in perplexity ± its standard error."""
    text = words.compare_and_runs
    perplexity = column.values.get("perplexity")
    dense = dense_value(table, "perplexity", column)
    if perplexity is None or not dense:
        return markup.cell(text.PERPLEXITY_CHANGE, text.NOT_MEASURED)
    change, error = numbers.relative_change(perplexity / dense - 1), column.errors.get("perplexity")
    spread = "" if error is None else f" ± {numbers.percent(error / dense)}"
    info = text.PERPLEXITIES.format(*map(numbers.perplexity, (perplexity, dense)))
    return markup.cell(text.PERPLEXITY_CHANGE, change + spread, info)


def html(tables: Sequence[Table]) -> str:
    """Return all tables, and save buttons."""
    if not tables:
        return markup.note(words.compare_and_runs.NO_RUN_SELECTED, "hint")
    return "".join(map(table_html, tables)) + save_buttons()


def save_buttons() -> str:
    """Return a button for each file format."""
    buttons = "".join(markup.button(name, "save", form=name) for name in FILES)
    return f"<p class='saves'>{buttons}</p>"


def table_html(table: Table) -> str:
    """Return a table with the best run of each row in bold and changes below the values."""
    heads = "".join(f"<th scope='col'>{escape(column.title)}</th>" for column in all_columns(table))
    rows = "".join(
        f"<tr><th scope='row'>{marked(METRICS[name].label)}</th>"
        f"{''.join(cell_html(table, name, column) for column in all_columns(table))}</tr>"
        for name in table.rows
    )
    return (
        "<div class='compared' tabindex='0' role='region' aria-label='Comparison'><table>"
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        + "".join(map(markup.note, notes(table)))
    )


def plain_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table. names: of the columns; the first column names the rows."""
    heads = "".join(f"<th scope='col'>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr><th scope='row'>{escape(str(first))}</th>"
        f"{''.join(f'<td>{escape(str(value))}</td>' for value in values)}</tr>"
        for first, *values in rows
    )
    return (
        "<div class='compared plain' tabindex='0' role='region' aria-label='Differences'><table>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def all_columns(table: Table) -> tuple[Column, ...]:
    """Return the columns of the dense model and of the runs."""
    return (table.dense, *table.runs)


def notes(table: Table) -> list[str]:
    """Return the protocols of the models, or the common protocol."""
    columns = [column for column in all_columns(table) if column.note]
    if len({column.note for column in columns}) < 2:
        return [column.note for column in columns[:1]]
    return [f"{column.title}: {column.note}" for column in columns]


def cell_html(table: Table, name: str, column: Column) -> str:
    """Return a cell of the table."""
    text, change = escape(value_text(name, column)), escape(change_text(table, name, column))
    if table.is_best(name, column):
        text = f"<b>{text}</b>"
    return f"<td>{text}{f'<i>{change}</i>' if change else ''}</td>"


def dense_value(table: Table, name: str, column: Column) -> float | None:
    """Return the value of the dense model, from the measurement of this column if it has one."""
    return column.dense.get(name, table.dense.values.get(name))


def change_text(table: Table, name: str, column: Column) -> str:
    """Return the change of a value from the dense model; "" for the dense model and top-1."""
    dense = dense_value(table, name, column)
    value = column.values.get(name)
    if column is table.dense or value is None or not dense or name == "top1":
        return ""
    return markup.change(value, dense)


def value_text(name: str, column: Column) -> str:
    """Return a value ± its standard error."""
    if name not in column.values:
        return words.compare_and_runs.NOT_MEASURED if name == "perplexity" else "–"
    error = column.errors.get(name)
    spread = f" ± {error:.4f}" if error is not None else ""
    return METRICS[name].as_text(column.values[name]) + spread


def as_csv(tables: Sequence[Table]) -> str:
    """Return a line per metric and a column per model, with unrounded numbers and errors."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [column for table in tables for column in all_columns(table)]
    writer.writerow(["metric", *(column.title for column in columns)])
    for name, metric in METRICS.items():
        if not any(name in column.values for column in columns):
            continue
        writer.writerow([metric.label, *(column.values.get(name, "") for column in columns)])
        if any(name in column.errors for column in columns):
            label = f"{metric.label}: {words.compare_and_runs.STANDARD_ERROR}"
            writer.writerow([label, *(column.errors.get(name, "") for column in columns)])
    return out.getvalue()


def as_markdown(tables: Sequence[Table]) -> str:
    """Return the tables in Markdown."""
    return "\n".join(map(markdown_table, tables))


def markdown_table(table: Table) -> str:
    """Return a table in Markdown, with notes."""
    columns = all_columns(table)
    lines = [["", *(column.title for column in columns)], ["---"] * (len(columns) + 1)]
    for name in table.rows:
        cells = [
            f"**{value_text(name, column)}**"
            if table.is_best(name, column)
            else value_text(name, column)
            for column in columns
        ]
        lines.append([METRICS[name].label, *cells])
    rows = "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )
    return rows + "".join(f"\n{note}\n" for note in notes(table))


def as_latex(tables: Sequence[Table]) -> str:
    """Return the tables in LaTeX, for the package booktabs."""
    return "\n".join(map(latex_table, tables))


def latex_table(table: Table) -> str:
    """Return a table in LaTeX, with the notes as comments."""
    columns = all_columns(table)
    lines = [["", *(latex(column.title) for column in columns)]]
    for name in table.rows:
        cells = [
            f"\\textbf{{{latex(value_text(name, column))}}}"
            if table.is_best(name, column)
            else latex(value_text(name, column))
            for column in columns
        ]
        lines.append([latex(METRICS[name].label), *cells])
    head, *body = [f"{' & '.join(line)} \\\\\n" for line in lines]
    comments = "".join(f"% {note}\n" for note in notes(table))
    return (
        f"{comments}\\begin{{tabular}}{{l{'r' * len(columns)}}}\n\\toprule\n{head}\\midrule\n"
        f"{''.join(body)}\\bottomrule\n\\end{{tabular}}\n"
    )


def latex(text: str) -> str:
    """Return text with the special characters of LaTeX escaped."""
    return "".join(LATEX.get(character, character) for character in text)


WRITERS = {"CSV": as_csv, "Markdown": as_markdown, "LaTeX": as_latex}
