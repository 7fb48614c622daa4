"""The handlers of the Spectra and Allocation tabs, called with clicks and values of the form."""

import asyncio
import json
import re
import time

import gradio as gr
import pandas as pd
import pytest
from page_server import PATIENCE
from page_values import BROWSER, click

import lrcore
from lrcore.ranks.policies.softmax import HIGHEST_SUGGESTED
from workbench import words
from workbench.base import numbers
from workbench.figures import base
from workbench.figures.allocation import CHOSEN_LINE
from workbench.figures.cell import HeatmapCell, cell_figures
from workbench.state import manual_ranks
from workbench.state.browsers import CONTEXT
from workbench.state.keys import calibration_key
from workbench.state.plan_history import PlanHistory
from workbench.state.store import Store
from workbench.tabs import spectra
from workbench.tabs.allocation import (
    budget_curve,
    handlers,
    measured_cells,
    options,
    plan_figures,
    rank_editor,
    ranks_table,
)
from workbench.views import markup
from workbench.views.term_markup import marked
from workbench.widgets.form import FIELD_NAMES, NAMES, Form, input_values
from workbench.widgets.page import put_recipe

RECIPE = lrcore.Recipe(samples=4, seq_len=32, ratio=0.3)
KEY = list(calibration_key(RECIPE))
SOURCE = "demo-llama · calibrated on stories: 4 windows × 32 tokens (random, seed 0)"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    store.analysis(RECIPE)
    store.factors(RECIPE)
    return store


@pytest.fixture(scope="module")
def form():
    with gr.Blocks():
        return Form()


@pytest.fixture
def empty_store(tmp_path):
    return Store(tmp_path)


def test_the_heatmap_needs_an_analysis(store, empty_store):
    figure, scatter, help_line = spectra.draw_heatmap(store, ["effective_rank", 0.9, "aware"], KEY)
    assert "qk" in json.loads(figure)["data"][0]["y"]
    cells = json.loads(figure)["data"][0]
    assert cells["y"].index(" ") == cells["y"].index("mlp") + 1  # a gap after the components
    assert (cells["zmin"], cells["zmax"]) == (0, 1)
    assert json.loads(figure)["caption"] == f"Effective rank, activation-aware · {SOURCE}"
    assert scatter == ""
    assert "entropy" in help_line
    controls = ["effective_rank", 0.9, "aware"]
    figure, _, hint = spectra.draw_heatmap(empty_store, controls, KEY, *input_values(RECIPE))
    assert figure == ""
    assert words.spectra.NOT_ANALYZED in hint


@pytest.mark.parametrize("measure", sorted(words.spectra.MEASURES.keys() - {spectra.LOSS}))
def test_the_hint_of_a_spectral_measure_refers_to_the_measured_loss(store, measure):
    """Removing the cell with the lowest rank can ruin the model."""
    *_, hint = spectra.draw_heatmap(store, [measure, 0.9, "aware"], KEY)
    assert words.spectra.MEASURES[spectra.LOSS][0] in hint


def test_controls_of_other_measures_are_hidden():
    visible_controls = {
        measure: [part["visible"] for part in spectra.show_controls(measure)]
        for measure in words.spectra.MEASURES
    }
    assert visible_controls.pop("energy_rank") == [True, True]
    assert visible_controls.pop(spectra.LOSS) == [False, False]
    assert all(value == [False, True] for value in visible_controls.values())


def test_a_click_on_a_cell_selects_and_draws_it(store):
    event = click(x=1, y="ov", custom=[1, "ov"])
    slot, mark, displayed_slot, _, values, energy, heading = spectra.click_cell(
        store, event, [0, "qk"], [-1, "log", []], KEY, *input_values(RECIPE)
    )
    assert slot == displayed_slot == [1, "ov"]
    assert json.loads(mark) == [1, "ov", True]
    rank = store.plan(RECIPE).ranks[1, "ov"]
    for figure in (values, energy):
        assert json.loads(figure)["layout"]["shapes"][0]["x0"] == rank
        assert json.loads(figure)["caption"] == f"Layer 1 · ov · {SOURCE}"
    assert f"rank {rank} loses at least" in heading
    redrawn = spectra.draw_other_cell(
        store, displayed_slot, slot, [-1, "log", []], KEY, *input_values(RECIPE)
    )
    assert len(set(map(str, redrawn))) == 1  # the cell is drawn already


@pytest.mark.parametrize(("typed", "drawn_ratio"), [(2.0, 0.995), (-1.0, 0.005), (None, 0.005)])
def test_a_ratio_out_of_range_is_reported_and_the_nearest_limit_is_used(store, typed, drawn_ratio):
    values, nearest = input_values(RECIPE), input_values(RECIPE.with_(ratio=drawn_ratio))
    values[0][FIELD_NAMES.index("ratio")] = typed
    for draw in (handlers.draw_plan, handlers.draw_plan_by_temperature):
        widgets, expected = draw(store, BROWSER, *values), draw(store, BROWSER, *nearest)
        assert (widgets.bars, widgets.caption) == (expected.bars, expected.caption)
        assert f"outside the range 0.005 to 0.995; the plan uses {drawn_ratio}" in widgets.summary
    with pytest.raises(lrcore.InputError, match="threshold"):
        store.analysis(RECIPE).table(2.0)


@pytest.mark.parametrize("ratio", [0.99, 0.999])
def test_the_ratio_of_a_loaded_recipe_is_limited_to_the_range_of_the_slider(form, ratio):
    recipe = put_recipe(lrcore.Recipe(ratio=ratio))[NAMES.index("ratio")]
    assert recipe == min(ratio, 0.995) <= form["ratio"].maximum


def test_the_temperature_slider_reaches_uneven_ranks_if_the_rule_gives_uniform_ones(store):
    plan = store.plan(RECIPE.with_(policy="softmax", ratio=0.85))
    assert plan.suggested_temperature >= HIGHEST_SUGGESTED
    slider = plan_figures.temperature_slider(plan, is_automatic=True)
    assert slider["minimum"] < 0.01
    assert slider["value"] == slider["maximum"] == plan.temperature


@pytest.mark.parametrize("typed", [0, -3, None])
def test_an_invalid_temperature_is_reported_and_the_automatic_one_is_used(store, typed):
    values = input_values(RECIPE.with_(policy="softmax", temperature=0.2))
    values[0][FIELD_NAMES.index("temperature")] = typed
    widgets = handlers.draw_plan_by_temperature(store, BROWSER, *values)
    by_rule = input_values(RECIPE.with_(policy="softmax"))
    assert widgets.bars == handlers.draw_plan(store, BROWSER, *by_rule).bars
    assert "must be positive; the plan uses the automatic temperature" in widgets.summary
    assert widgets.slider["value"] > 0
    assert widgets.rule is True


def test_the_slider_extends_to_a_typed_temperature(store):
    values = input_values(RECIPE.with_(policy="softmax", temperature=1000.0))
    slider = handlers.draw_plan_by_temperature(store, BROWSER, *values).slider
    assert slider["value"] == 1000
    assert slider["maximum"] > 1000


def test_an_invalid_number_of_windows_is_reported_instead_of_the_plan(store):
    values = input_values(RECIPE)
    values[0][FIELD_NAMES.index("samples")] = -4
    widgets = handlers.draw_plan(store, BROWSER, *values)
    assert widgets.bars == ""
    assert "samples" in widgets.summary


def entry(owner, name, value):
    """Return the event of a field of an option."""
    return click(owner=owner, field=f"option-{name}", value=value)


def test_a_field_with_an_invalid_option_is_reset_to_the_value_of_the_plan():
    choice, stored = ["aa_svd", "uniform", 0.0], ({"anchor": 0.25}, {})
    half_typed = entry("method", "anchor", -1.0)
    assert options.enter(half_typed, choice, *stored) == [gr.skip()] * 2
    with pytest.warns(UserWarning, match="Option anchor must be from 0 to 1"):
        fields = options.leave(half_typed, choice, *stored)
    assert {field["elem_id"]: field["value"] for field in fields}["option-anchor"] == 0.25
    without_value = options.leave(entry("method", "anchor", None), choice, {}, {})
    default = next(o for o in options.OWNERS[0].options("aa_svd") if o["name"] == "anchor")
    values = {field["elem_id"]: field["value"] for field in without_value}
    assert values["option-anchor"] == default["default"]
    assert options.leave(entry("method", "anchor", 0.5), choice, *stored) == gr.skip()


def test_the_axis_of_lost_energy_begins_at_rank_one(store):
    _, energy, _ = cell_figures(store.analysis(RECIPE), HeatmapCell(1, "ov", rank=20), log=False)
    assert json.loads(energy)["layout"]["xaxis"]["range"][0] == 1


def test_numbers_in_the_heatmap_have_sufficient_contrast(store):
    figure, *_ = spectra.draw_heatmap(store, ["effective_rank", 0.9, "aware"], KEY)
    *_, written = json.loads(figure)["data"]
    assert {*written["textfont"]["color"]} == {base.BLACK, base.WHITE}
    for i in range(101):
        light = base.luminance(base.viridis(i / 100))
        on_black, on_white = (light + 0.05) / 0.05, 1.05 / (light + 0.05)
        ratio = {base.BLACK: on_black, base.WHITE: on_white}[base.ink(i / 100)]
        assert ratio >= 4.5


def test_the_lost_energy_is_the_share_of_the_removed_singular_values(store):
    _, energy, heading = cell_figures(
        store.analysis(RECIPE), HeatmapCell(1, "ov", rank=20), log=True
    )
    energy_figure = json.loads(energy)
    squares = store.analysis(RECIPE).values(1, "ov") ** 2
    assert energy_figure["layout"]["yaxis"]["type"] == "log"
    ranks, lost = energy_figure["data"][0]["x"], energy_figure["data"][0]["y"]
    assert min(lost) > 0
    for rank, share_lost in zip(ranks, lost, strict=True):
        assert share_lost == pytest.approx(squares[rank:].sum() / squares.sum(), rel=1e-6)
    assert f"{squares[20:].sum() / squares.sum():.2%}" in heading


def test_an_impossible_budget_has_no_planned_rank(store):
    slot = [0, "qk"]
    assert spectra.planned_rank(store, RECIPE, slot) == store.plan(RECIPE).ranks[0, "qk"]
    assert spectra.planned_rank(store, RECIPE.with_(rank_overrides={"0.qk": 10**6}), slot) is None
    assert spectra.planned_rank(store, None, slot) is None


def test_heads_and_table_match_the_analysis(store, empty_store):
    assert len(spectra.list_heads(store, [0, "qk"], KEY, [-1, "log", []])["choices"]) > 1
    assert len(spectra.list_heads(store, [0, "mlp"], KEY, [-2, "log", []])["choices"]) == 1
    assert {"layer", "name", "effective_rank"} <= {*spectra.fill_table(store, 0.9, KEY).columns}
    file = json.loads(spectra.download_table(store, 0.9, KEY))
    assert file["name"] == "spectra.csv"
    with pytest.raises(lrcore.InputError, match="Analyze"):
        spectra.download_table(empty_store, 0.9, KEY)


def test_moving_the_slider_updates_bars_summary_and_key(store):
    widgets = handlers.draw_plan(store, BROWSER, *input_values(RECIPE))
    assert marked(words.allocation.UNIFORM_BARS) in widgets.caption
    assert "requested 30.0%" in widgets.summary
    assert "a3" in widgets.about
    assert widgets.plan_key == store.live_key(RECIPE)
    assert json.loads(widgets.bars)["layout"]["meta"]["mark"] == "bar"
    plan = "a3, uniform, 30.0% of decoder parameters removed"
    assert json.loads(widgets.bars)["caption"] == f"{plan} · {SOURCE}"
    assert widgets.rule == gr.skip()
    softmax = RECIPE.with_(policy="softmax", temperature=0.2)
    widgets = handlers.draw_plan_by_temperature(store, BROWSER, *input_values(softmax))
    assert widgets.rule is False


def test_an_impossible_budget_is_reported_above_the_dimmed_bars(store):
    values = input_values(RECIPE.with_(rank_overrides={"0.qk": 10**6}))
    summary = handlers.draw_plan(store, BROWSER, *values).summary
    assert "<div class='stale'><div class='note error'" in summary  # the previous bars are dimmed


def test_without_factors_a_hint_is_displayed_and_the_previous_plots_are_dimmed(empty_store):
    values = input_values(RECIPE)
    widgets = handlers.draw_plan(empty_store, BROWSER, *values)
    assert markup.stale(markup.note(words.spectra.NO_FACTORS, "hint")) == widgets.summary
    figures = [widgets.bars, widgets.caption, handlers.draw_policies(empty_store, *values)[0]]
    figures += [
        budget_curve.draw(empty_store, *values)[0],
        plan_figures.draw_network(empty_store, BROWSER, *values),
    ]
    assert figures == [gr.skip()] * 5


def test_live_figures_of_the_displayed_plan_are_streamed(store):
    recipe = RECIPE.with_(policy="softmax")
    measured_cells.request_continuation(store, BROWSER, True, "One day", *input_values(recipe))
    key = handlers.draw_plan(store, BROWSER, *input_values(recipe)).plan_key
    end = time.monotonic() + PATIENCE

    async def last_cells() -> dict[str, str]:
        cells = {}
        async for sent in measured_cells.stream_cells(store, BROWSER):
            cells = json.loads(sent)
            assert time.monotonic() < end
        return cells

    cells = asyncio.run(last_cells())
    assert len(cells) == 3
    assert "data-known='True'" in cells[key]
    assert f"data-of='{key}'" in cells["continuation"]
    measured_cells.request_continuation(
        store, BROWSER, False, "One day", *input_values(recipe)
    )  # the section is collapsed
    assert len(asyncio.run(last_cells())) == 2


def test_a_truncated_prompt_has_a_warning(store, monkeypatch):
    warnings, values = [], input_values(RECIPE)
    monkeypatch.setattr(measured_cells, "warn", warnings.append)
    longest = measured_cells.MAX_PROMPT
    for length, sentences in ((longest, 0), (longest + 1, 1)):
        measured_cells.request_continuation(store, BROWSER, True, length * "a", *values)
        assert store.browsers.prompt(BROWSER.session_hash) == longest * "a"
        assert len(warnings) == sentences
    assert numbers.count(longest + 1) in warnings[0]
    measured_cells.request_continuation(store, BROWSER, False, "", *values)


def test_the_survey_lists_methods_without_factors(store):
    figure, message = handlers.draw_policies(store, *input_values(RECIPE))
    lines = {trace["name"]: trace["line"] for trace in json.loads(figure)["data"]}
    assert {name for name, line in lines.items() if line == CHOSEN_LINE} == {RECIPE.policy}
    assert len(lines) > 5
    assert "Not factorized yet" in message


def test_a_rank_typed_into_the_table_becomes_a_manual_rank(store):
    rows, displayed_ranks = ranks_table.fill_table(store, *input_values(RECIPE))
    assert displayed_ranks == {
        manual_ranks.slot_name(slot): rank for slot, rank in store.plan(RECIPE).ranks.items()
    }
    rows.loc[0, "rank"] = displayed_ranks["0.qk"] + 2
    typed, _ = ranks_table.edit_table(store, rows, displayed_ranks, *input_values(RECIPE))
    assert typed == {"0.qk": displayed_ranks["0.qk"] + 2}


@pytest.mark.parametrize(
    ("typed", "why"),
    [("many", "whole number"), ("3.7", "whole number"), ("inf", "whole number"), ("9999", "0.qk")],
)
def test_an_invalid_rank_is_refused_and_the_table_is_reset(store, typed, why):
    before, displayed_ranks = ranks_table.fill_table(store, *input_values(RECIPE))
    rows = before.astype({"rank": object})
    rows.loc[0, "rank"] = typed
    with pytest.warns(UserWarning, match=why):
        by_hand, table = ranks_table.edit_table(store, rows, displayed_ranks, *input_values(RECIPE))
    assert by_hand == gr.skip()
    pd.testing.assert_frame_equal(table, before)


def pressed(store, action, recipe, gesture=0):
    """Return the values of the form after a button of the editor was pressed, by name."""
    values = rank_editor.press(
        store, BROWSER, click(action=action), gesture, [1, "ov"], *input_values(recipe)
    )
    return dict(zip((*NAMES, "choice"), values, strict=True))


def test_manual_ranks_are_dragged_released_and_cleared(store):
    dragged = rank_editor.drag(click(layer=1, component="ov", rank=6), {"0.qk": 4})
    assert dragged == {"0.qk": 4, "1.ov": 6}
    recipe = RECIPE.with_(rank_overrides=dragged)
    assert pressed(store, "release", recipe)["rank_overrides"] == {"0.qk": 4}
    assert pressed(store, "clear-overrides", recipe)["rank_overrides"] == {}
    assert pressed(store, "release", recipe)["method"] == gr.skip()
    reset = rank_editor.drag(click(layer=1, component="ov", rank=None), dragged)
    assert reset == {"0.qk": 4}
    with pytest.raises(lrcore.InputError, match="action"):
        pressed(store, "invent", recipe)


def settled(store, recipe, gesture):
    """Report the settings after a gesture; return which of Undo and Redo are disabled."""
    _, _, buttons, *_ = rank_editor.settle(
        store, BROWSER, gesture, [0, "qk"], *input_values(recipe)
    )
    return {*re.findall("data-action='(undo|redo)' disabled", buttons)}


def test_undo_restores_all_settings_also_before_the_last_change_is_reported(store):
    by_hand = RECIPE.with_(rank_overrides={"0.qk": 4}, component_ratios={"qk": 0.1234567})
    settled(store, RECIPE, 1)
    assert settled(store, by_hand, 2) == {"redo"}
    changed = by_hand.with_(method="svd", rank_overrides={}, component_ratios={})
    restored = pressed(store, "undo", changed, gesture=3)
    assert (restored["method"], restored["rank_overrides"]) == ("a3", {"0.qk": 4})
    assert restored["component_ratios"] == "qk=0.1234567"
    assert restored["choice"][:2] == ["a3", by_hand.policy]
    assert settled(store, changed, 3) == set()  # late, and ignored
    assert settled(store, by_hand, 3) == set()
    assert pressed(store, "redo", by_hand, gesture=3)["method"] == "svd"
    assert settled(store, changed, 3) == {"redo"}
    with pytest.raises(lrcore.InputError, match="gesture"):
        settled(store, RECIPE, "x")


def test_the_rank_field_refuses_an_impossible_rank(store):
    values = input_values(RECIPE)
    overrides, _ = rank_editor.type_rank(store, 8, 10, [0, "qk"], *values)
    assert overrides == {"0.qk": 8}
    with pytest.warns(UserWarning, match="ranks go from"):
        refused = rank_editor.type_rank(store, 10**6, 10, [0, "qk"], *values)
    assert refused == (gr.skip(), 10)  # the field shows the rank of the plan again
    assert rank_editor.type_rank(store, None, 10, [0, "qk"], *values)[1] == 10


def test_the_summary_has_the_size_of_the_cache_for_the_selected_context(store):
    values, account = input_values(RECIPE), store.plan(RECIPE).account
    try:
        for tokens in (CONTEXT, 32768):
            handlers.choose_context(store, BROWSER, tokens)
            summary = handlers.draw_plan(store, BROWSER, *values).summary
            assert marked(words.allocation.CACHE.format(numbers.count(tokens))) in summary
            for cost in (account.model, account.dense):
                assert numbers.megabytes(tokens * cost.kv_bytes_per_token / 1e6) in summary
    finally:
        handlers.choose_context(store, BROWSER, CONTEXT)


def test_the_rank_editor_shows_the_rank_and_the_number_of_manual_ranks(store):
    recipe = RECIPE.with_(rank_overrides={"0.qk": 4})
    box, buttons, changes, in_box = rank_editor.show(
        store, [0, "qk"], PlanHistory(recipe), *input_values(recipe)
    )
    assert box.value == in_box == 4
    disabled = re.findall("data-action='([a-z-]+)' disabled", buttons)
    assert disabled == ["undo", "redo"]
    assert "1 set manually" in changes


def test_options_with_their_default_are_not_stored():
    choice, unchanged = ["a3", "uniform", 0.0], [gr.skip(), gr.skip()]
    default = next(o for o in options.OWNERS[0].options("a3") if o["name"] == "qk")["default"]
    by_weights, by_default = entry("method", "qk", "weights"), entry("method", "qk", default)
    assert options.enter(by_weights, choice, {}, {}) == [{"qk": "weights"}, gr.skip()]
    assert options.enter(by_weights, choice, {"qk": "weights"}, {}) == unchanged
    assert options.enter(by_default, choice, {"qk": "weights"}, {}) == [{}, gr.skip()]
    with pytest.raises(lrcore.InputError):  # a field of the method that was chosen before
        options.enter(entry("method", "junction", "symmetric"), choice, {}, {})


def test_a_click_on_use_uniform_resets_the_policy_and_the_manual_ranks(store):
    recipe = RECIPE.with_(policy="marginal", rank_overrides={"0.qk": 3})
    policy, settings, overrides, choice, *plan = handlers.press_summary(
        store,
        BROWSER,
        click(action=markup.USE_UNIFORM),
        ["a3", "marginal", 0.0],
        *input_values(recipe),
    )
    assert (policy, settings, overrides) == ("uniform", {}, {})
    assert choice[:2] == ["a3", "uniform"]
    assert {*map(str, plan)} == {str(gr.skip())}


def test_manual_ranks_are_restored_with_their_method(monkeypatch):
    warnings = []
    monkeypatch.setattr(options, "warn", warnings.append)
    settings = [{"joint": True}, {"0.qk": 3}, ["a3", "uniform", 0.0]]
    former, ratios, *new = options.choose_method("care", {}, *settings)
    assert (ratios, *new) == ("", {}, {}, ["care", "uniform", 0.0])
    assert "a3" in warnings[0]
    former, _, *restored = options.choose_method("a3", former, *new)
    assert restored == settings
    assert len(warnings) == 1  # care had no manual ranks
    assert options.choose_method("a3", former, *restored) == gr.skip()


def test_options_of_method_and_policy_are_visible_with_their_values():
    choice = ["care", "softmax", 1.0]
    accordion, fields = options.show(choice, {"joint": True}, {"cap": 0.5})
    assert accordion["visible"]
    values = {field["elem_id"]: field["value"] for field in fields}
    expected = {
        f"option-{option['name']}": option["default"]
        for owner in options.OWNERS
        for option in owner.options(choice[owner.position])
    }
    assert values == {**expected, "option-joint": True, "option-cap": 0.5}


@pytest.mark.parametrize("owner", options.OWNERS, ids=lambda owner: owner.field)
def test_each_option_accepts_its_values_and_no_value_of_another_kind(owner):
    for row in owner.rows():
        for option in row["options"]:
            for value in (option["default"], *option.get("choices", ())):
                assert options.invalid_value(option, value) == ""
            for value in ([], {}, "absent", 1.0 if isinstance(option["default"], bool) else True):
                assert options.invalid_value(option, value)


def test_an_unavailable_choice_is_not_stored():
    event = entry("method", "junction", "absent")
    assert options.enter(event, ["latentllm", "uniform", 0.0], {}, {}) == [gr.skip()] * 2
