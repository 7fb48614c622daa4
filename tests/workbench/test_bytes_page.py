"""A budget of bytes in the Allocation tab: its plan, its bits and the policy that chooses them."""

import json

import gradio as gr
import pytest
from page_values import BROWSER

import lrcore
from lrcore.checkpoints.standard.standard_fit import standard_fit
from lrcore.compression.evidence.measure import evidence_tokens
from workbench import words
from workbench.figures.budget_curve import BudgetCurves, budget_curves
from workbench.state.keys import DEFAULTS, predicted_recipe, with_uniform_ranks
from workbench.state.plan_view import bits_message, pinned_message, uniform_message
from workbench.state.store import Store
from workbench.tabs.allocation import budget_curve, options, plan_figures, rank_editor
from workbench.tabs.allocation.ranks_table import rank_rows
from workbench.views import markup, preview
from workbench.widgets.form import input_values

RATIO = 0.4


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(
        str(tiny_llama),
        data=str(story_file),
        samples=8,
        seq_len=32,
        policy="probed",
        budget="bytes",
        ratio=RATIO,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory, recipe):
    store = Store(tmp_path_factory.mktemp("runs"))
    store.factors(recipe)
    return store


@pytest.fixture(scope="module")
def plan(store, recipe):
    return store.plan(recipe)


def counts(plan):
    return [list(plan.bits.values()).count(bits) for bits in (8, 4, 3, 2)]


def test_the_plan_names_the_number_of_components_by_bits(store, recipe, plan):
    message = uniform_message(plan, store.uniform_plan(recipe))
    for bits, count in zip((8, 4, 3, 2), counts(plan), strict=True):
        assert (f"{count} in {bits} bits" in message) == (count > 0)
    below = sum(rank < plan.spectra[slot].cost.full for slot, rank in plan.ranks.items())
    assert message.endswith(f"{below} of {len(plan.ranks)} are below full rank.")
    summary = preview.run_summary(recipe, plan.summary())
    assert "Ranks and bits" in summary


def test_bars_and_diagram_show_bits_in_the_order_of_the_components(store, recipe, plan):
    assert [*plan.ranks] == [slot for slot in store.factors(recipe).spectra if slot in plan.ranks]
    figure = json.loads(plan_figures.bars(plan, store.uniform_plan(recipe)))
    drawn = {}
    for trace in figure["data"]:
        for layer, component, *_ in trace.get("customdata", ()):
            drawn[layer, component] = trace["name"]
            assert trace["name"] in trace["hovertemplate"]
    assert drawn == {slot: words.allocation.bits(plan.bits.get(slot, 0)) for slot in plan.ranks}
    assert "steps" not in figure["layout"]["meta"]  # bars cannot be dragged
    network = plan_figures.network_of(plan)
    for component, blocks in network.columns.items():
        for layer, block in blocks.items():
            slot = layer, component
            assert block.precision == f", {words.allocation.bits(plan.bits.get(slot, 0))}"
            assert block.retained == round(plan.slot_bytes(slot))


def test_layers_keep_the_share_of_their_bytes(plan):
    shares, itemsize = plan.kept_by_layer(), plan.shape.itemsize
    dense = [0.0] * plan.shape.layers
    for slot in plan.ranks:
        dense[slot[0]] += plan.spectra[slot].cost.dense * itemsize
    stored = sum(share * size for share, size in zip(shares, dense, strict=True))
    outside = plan.shape.bytes - sum(dense)
    assert stored + outside == pytest.approx(plan.account.model.bytes)


def test_the_table_lists_bits_and_the_editor_is_closed(store, recipe, plan):
    rows = rank_rows(plan, {})
    assert [*rows["bits"]] == [plan.bits.get(slot, "") for slot in plan.ranks]
    slot = next(slot for slot in plan.ranks if slot in plan.bits)
    history = store.browsers.change_history(BROWSER.session_hash, lambda history: history)
    box, *_ = rank_editor.show(store, [*slot], history, *input_values(recipe))
    assert (box.interactive, box.value) == (False, plan.ranks[slot])
    assert words.allocation.bits(plan.bits[slot]) in box.info


def test_the_curve_is_drawn_over_sizes(store, recipe, plan):
    figure, _ = budget_curve.draw(store, *input_values(recipe))
    axis = json.loads(figure)["layout"]["xaxis"]
    megabytes = plan.account.dense.megabytes
    for ratio, label in zip(axis["tickvals"], axis["ticktext"], strict=True):
        assert float(label.split()[0]) == pytest.approx(megabytes * (1 - ratio), rel=0.02)
        assert label.endswith("MB")
    assert 2 <= len(axis["tickvals"]) <= 6
    assert (
        "tickvals" not in json.loads(budget_curves(BudgetCurves((), "a3", 8.0)))["layout"]["xaxis"]
    )


def test_plans_with_equal_ranks_and_other_bits_differ(store, recipe, plan):
    uniform = store.uniform_plan(recipe)
    assert bits_message(uniform).endswith(f"0 of {len(uniform.ranks)} are below full rank.")
    coarse = store.plan(with_uniform_ranks(recipe.with_(ratio=RATIO + 0.15)))
    assert coarse.ranks == uniform.ranks
    assert coarse.bits != uniform.bits
    changed = sum(coarse.bits.get(slot) != uniform.bits.get(slot) for slot in coarse.ranks)
    message = pinned_message(coarse, recipe, uniform)
    assert f"other bits in {changed} of {len(coarse.ranks)}" in message


def test_a_plan_with_bits_fits_no_standard_architecture(store, recipe, plan):
    fit = standard_fit(store.dense(recipe), plan)
    assert (fit.qualifies, fit.reasons) == (False, ("its weights are quantized",))


def test_the_comparison_is_with_equal_bits():
    cell = markup.uniform_cell("plan", None, None, equal_bits=True)
    assert words.allocation.WITH_EQUAL_BITS in cell
    assert words.allocation.WITH_UNIFORM in markup.uniform_cell("plan", None, None)


def test_bytes_choose_the_policy_that_chooses_bits():
    def chosen(value, policy):
        event = gr.SelectData(None, {"index": 0, "value": value})
        return options.choose_budget(event, ["a3", policy, 1.0])

    assert chosen("bytes", "uniform") == ("probed", {}, ["a3", "probed", 1.0])
    for value, policy in (("bytes", "probed"), ("params", "uniform")):
        assert isinstance(chosen(value, policy), dict)  # gr.skip()


@pytest.mark.parametrize("budget", ["auto", "bytes", "latency"])
def test_factors_of_a_prediction_have_the_measurements_of_the_budget(budget):
    recipe = lrcore.Recipe(budget=budget, policy="energy", policy_options={"power": 2})
    predicted = predicted_recipe(recipe)
    assert (predicted.policy, predicted.budget, predicted.policy_options) == ("probed", budget, {})


def test_the_measurements_of_the_first_model_come_with_the_page():
    recipe = DEFAULTS.with_(budget="bytes", policy="probed")
    model = lrcore.load(recipe.model)
    factors = lrcore.factorize(model, lrcore.calibrate(model, recipe), recipe.method)
    assert evidence_tokens(factors, recipe) == 0
