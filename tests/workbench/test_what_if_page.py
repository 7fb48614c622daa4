"""The displayed plan projected onto a larger model."""

import json

import pytest

import lrcore
from lrcore.compression.what_if import MODEL_SHAPES
from workbench import words
from workbench.jobs import KINDS
from workbench.state.store import Store
from workbench.tabs.allocation import what_if
from workbench.widgets.form import input_values


@pytest.fixture
def draw_table(tiny_llama, story_file, tmp_path):
    """Return a function that draws the table of sizes for the values of the accordion."""
    store = Store(tmp_path / "runs", KINDS)
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=4, seq_len=32, method="a3", ratio=0.3
    )
    store.factors(recipe)

    def draw(shape="Llama-2-7B", context=1000, config="", **changes):
        values = input_values(recipe.with_(**changes))
        return what_if.draw(store, (shape, context, config), *values)

    return draw


def test_sizes_are_listed_with_the_dense_sizes(draw_table):
    table = draw_table()
    assert "6\u202f738\u202f415\u202f616" in table or "6 738 415 616" in table
    assert "<td>13.5 GB</td>" in table
    assert "<td>524 MB</td>" in table  # 1000 tokens of 524,288 bytes
    assert table.count("<td>no</td>") == 2  # neither fits in 8 GB
    assert draw_table(ratio=0.6) != table


@pytest.mark.parametrize("typed", [None, 0, -5, 1e12])
def test_an_invalid_context_is_reported_instead_of_the_table(draw_table, typed):
    table_html = draw_table(context=typed)
    assert "note error" in table_html
    assert words.allocation.CONTEXT in table_html


def test_a_pasted_config_replaces_the_selected_shape(draw_table):
    fields = MODEL_SHAPES["Qwen2.5-7B"]
    assert "qwen2 (28 layers)" in draw_table(config=json.dumps(fields))
    for pasted, sentence in (
        ("{", "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ('{"model_type": "<b>none</b>"}', "&lt;b&gt;none"),
        ('{"model_type": "llama", "hidden_size": -4}', "llama"),
    ):
        assert sentence in draw_table(config=pasted)
        assert "note error" in draw_table(config=pasted)
