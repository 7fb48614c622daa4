"""The table of runs: pages, sorting, search, columns and selection."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from page_values import click
from test_comparing import make_run

import lrcore
from workbench import words
from workbench.tabs.runs.listing import ROWS, View, sort_runs, table_page
from workbench.tabs.runs.runs_table import select_runs
from workbench.views import run_text
from workbench.widgets import chosen
from workbench.widgets.page import MAX_RUNS

PICTURE = '<img src="http://other.example/x.png">'


def make_evaluated_run(name, perplexity, **fields):
    run = replace(make_run(name, lrcore.Recipe()), **fields)
    if perplexity:
        figures = {"perplexity": perplexity, "dense_perplexity": 2.0, "protocol": {"source": "s"}}
        run.evaluations.append(figures)
    return run


def store_of(runs):
    stored = {run.id: run for run in runs}
    return SimpleNamespace(
        runs=SimpleNamespace(all=lambda: runs, ids=lambda: [*stored], get=stored.get),
        runs_by_id=lambda ids: [stored[run_id] for run_id in ids if run_id in stored],
    )


def test_a_browser_gets_one_page_of_many_runs():
    runs = [make_evaluated_run(f"run {i}", 0, created=float(i)) for i in range(10_000)]
    first = table_page(runs, View.read({}))
    assert first["html"].count(" data-run=") == ROWS
    assert "run 9999" in first["html"]
    assert first["rows"] == "1–50 of 10000"
    end = table_page(runs, View.read({"page": 10**9}))
    assert (end["page"], end["more"]) == (199, False)
    assert "run 0<" in end["html"]


def test_the_browser_selects_order_search_words_and_columns():
    runs = [
        make_evaluated_run("b", 3.0, tags=("paper",)),
        make_evaluated_run("a", None),
        make_evaluated_run("c", 2.5),
    ]
    assert [run.id for run in sort_runs(runs, View(sort="perplexity", falling=False))] == [*"cba"]
    assert [run.id for run in sort_runs(runs, View(sort="perplexity", falling=True))] == [*"bca"]
    page = table_page(runs, View.read({"words": "PAPER b", "columns": ["name", "perplexity", "x"]}))
    assert page["rows"] == "1 run"
    assert ">3.0000</td>" in page["html"]
    runs[0].evaluations[-1]["delta_error"] = 0.01
    assert ">3.0000 ± 0.0300</td>" in table_page(runs, View.read({}))["html"]
    assert "Tags" not in page["html"]
    assert (
        words.compare_and_runs.NO_MATCHING_RUNS
        in table_page(runs, View.read({"words": "none"}))["html"]
    )


@pytest.mark.parametrize("stored_view", [{"sort": "x", "page": "1"}, {"columns": 3, "words": None}])
def test_invalid_fields_of_a_stored_view_are_ignored(stored_view):
    assert View.read(stored_view) == View.read({})


def test_typed_text_is_escaped_and_long_model_names_are_shortened():
    recipe = lrcore.Recipe(model=f"/models/{'deep/' * 20}tiny")
    run = replace(make_evaluated_run(PICTURE, 2.0), id="'><i>", tags=(PICTURE,), recipe=recipe)
    html = table_page([run], View.read({}))["html"]
    assert "<img" not in html
    assert "<i>" not in html
    assert "deep/tiny</td>" in html
    assert len(run_text.shorter(recipe.model, 32)) == 32


def test_ticks_select_at_most_six_runs():
    runs = [make_evaluated_run(str(i), 2.0) for i in range(300)]
    store = store_of(runs)
    selection = select_runs(store, click(runs=["2"]))
    assert selection["value"] == ["2"]
    assert len(selection["choices"]) == chosen.MAX_LISTED + 1  # the newest runs, and run 2
    assert select_runs(store, click(runs=["1", "gone", "1"]))["value"] == ["1"]
    assert chosen.toggle(store, ["1"], "2")["value"] == ["1", "2"]
    assert chosen.toggle(store, ["1", "2"], "1")["value"] == ["2"]
    many = [str(i) for i in range(MAX_RUNS + 1)]
    with pytest.raises(lrcore.InputError, match="Remove one"):
        select_runs(store, click(runs=many))
