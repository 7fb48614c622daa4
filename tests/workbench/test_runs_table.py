"""The table of runs: pages, order, words, columns, and the ticks that compare."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from page_values import click
from test_comparing import run_of

import lrcore
from workbench import chosen, run_text
from workbench.page import MOST_RUNS
from workbench.tabs.runs.listing import ROWS, View, in_order, listed
from workbench.tabs.runs.table import choose_ticked

PICTURE = '<img src="http://other.example/x.png">'


def measured(name, perplexity, **more):
    run = replace(run_of(name, lrcore.Recipe()), **more)
    if perplexity:
        figures = {"perplexity": perplexity, "dense_perplexity": 2.0, "protocol": {"source": "s"}}
        run.evaluations.append(figures)
    return run


def store_of(runs):
    known = {run.id: run for run in runs}
    return SimpleNamespace(
        runs=SimpleNamespace(all=lambda: runs, ids=lambda: [*known], get=known.get),
        chosen_runs=lambda ids: [known[one] for one in ids if one in known],
    )


def test_a_browser_is_sent_one_page_of_many_runs():
    runs = [measured(f"run {i}", 0, created=float(i)) for i in range(10_000)]
    first = listed(runs, View.of({}))
    assert first["html"].count(" data-run=") == ROWS
    assert "run 9999" in first["html"]
    assert first["rows"] == "1–50 of 10000"
    end = listed(runs, View.of({"page": 10**9}))
    assert (end["page"], end["more"]) == (199, False)
    assert "run 0<" in end["html"]


def test_order_and_words_and_columns_are_the_browsers():
    runs = [measured("b", 3.0, tags=("paper",)), measured("a", None), measured("c", 2.5)]
    assert [run.id for run in in_order(runs, View(sort="perplexity", falling=False))] == [*"cba"]
    assert [run.id for run in in_order(runs, View(sort="perplexity", falling=True))] == [*"bca"]
    found = listed(runs, View.of({"words": "PAPER b", "columns": ["name", "perplexity", "x"]}))
    assert found["rows"] == "1 run"
    assert ">3.0000</td>" in found["html"]
    runs[0].evaluations[-1]["delta_error"] = 0.01
    assert ">3.0000 ± 0.0300</td>" in listed(runs, View.of({}))["html"]
    assert "Tags" not in found["html"]
    assert run_text.NO_SUCH_RUNS in listed(runs, View.of({"words": "none"}))["html"]


@pytest.mark.parametrize("kept", [{"sort": "x", "page": "1"}, {"columns": 3, "words": None}])
def test_a_view_that_an_earlier_version_kept_is_read_as_far_as_it_goes(kept):
    assert View.of(kept) == View.of({})


def test_what_people_type_is_escaped_and_long_bases_lose_their_middle():
    recipe = lrcore.Recipe(model=f"/models/{'deep/' * 20}tiny")
    run = replace(measured(PICTURE, 2.0), id="'><i>", tags=(PICTURE,), recipe=recipe)
    html = listed([run], View.of({}))["html"]
    assert "<img" not in html
    assert "<i>" not in html
    assert "deep/tiny</td>" in html
    assert len(run_text.shorter(recipe.model, 32)) == 32


def test_ticks_choose_runs_and_the_seventh_is_refused():
    runs = [measured(str(i), 2.0) for i in range(300)]
    store = store_of(runs)
    one = choose_ticked(store, click(runs=["2"]))
    assert one["value"] == ["2"]
    assert len(one["choices"]) == chosen.MOST_LISTED + 1  # the newest, and run 2
    assert choose_ticked(store, click(runs=["1", "gone", "1"]))["value"] == ["1"]
    assert chosen.toggle(store, ["1"], "2")["value"] == ["1", "2"]
    assert chosen.toggle(store, ["1", "2"], "1")["value"] == ["2"]
    many = [str(i) for i in range(MOST_RUNS + 1)]
    with pytest.raises(lrcore.InputError, match="take one out"):
        choose_ticked(store, click(runs=many))
