"""The figure of the network, with areas proportional to the retained parameters."""

import json

import gradio as gr
import pytest
from page_values import BROWSER

import lrcore
from workbench.figures.network import Block, Network, columns_of, network
from workbench.state.store import Store
from workbench.tabs.allocation.plan_figures import draw_network, network_of
from workbench.widgets.form import input_values

RECIPE = lrcore.Recipe(samples=4, seq_len=32, ratio=0.3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    for method in ("svd_llm", "care"):
        store.factors(RECIPE.with_(method=method))
    return store


def traces_by_name(figure: str) -> dict[str, dict]:
    return {trace["name"]: trace for trace in json.loads(figure)["data"]}


def test_forms_of_a_component_share_a_column():
    """The title has their joint share; the width of a block is its cost."""
    network_data = Network(
        {
            "qk": {0: Block(2, 8, 30, 60)},
            "q": {1: Block(3, 6, 20, 40)},
            "k": {1: Block(9, 9, 20, 20)},
        },
        2,
        "parameters",
        forms={"qk": ("qk", "narrowed"), "q": ("qk", "pairs"), "k": ("qk", "pairs")},
    )
    figure = json.loads(network(network_data))
    assert figure["layout"]["xaxis"]["ticktext"] == ["qk<br>58%"]
    ends = figure["layout"]["meta"]["columns"]
    assert ends["qk"] == [0.0, 1.0]
    assert ends["q"] == pytest.approx([0.0, 2 / 3])
    assert ends["k"] == pytest.approx([2 / 3, 1.0])
    gray, narrowed, pairs = figure["data"]
    assert (narrowed["name"], pairs["name"]) == ("kept: narrowed", "kept: pairs")
    assert gray["x"] == pytest.approx([1.0, 2 / 3, 1 / 3])
    assert narrowed["x"] == pytest.approx([0.5])
    assert pairs["x"] == pytest.approx([1 / 3, 1 / 3])


def test_areas_are_proportional_to_the_parameters_of_the_plan(store):
    recipe = RECIPE.with_(method="svd_llm")
    figure = draw_network(store, BROWSER, *input_values(recipe))
    plan, traces = store.plan(recipe), traces_by_name(figure)
    account = plan.account
    share = sum(traces["kept"]["x"]) / sum(traces["removed"]["x"])
    slots = account.dense.decoder_parameters - network_of(plan).uncompressed * plan.shape.layers
    kept_parameters = account.model.decoder_parameters - account.dense.decoder_parameters + slots
    assert share == pytest.approx(kept_parameters / slots)
    assert json.loads(figure)["caption"].startswith("svd_llm, uniform, 30.0% of decoder")
    assert len(traces["kept"]["x"]) == len(plan.ranks)


def test_with_a_kv_budget_areas_are_bytes_of_the_cache(store):
    recipe = RECIPE.with_(method="care")
    plan = store.plan(recipe)
    cache_network = network_of(plan)
    assert set(cache_network.columns) == {"k", "v"}
    assert "KV cache" in cache_network.unit
    kept_bytes = [
        block.retained for blocks in cache_network.columns.values() for block in blocks.values()
    ]
    assert sum(kept_bytes) == plan.account.model.kv_bytes_per_token
    assert "not compressed" not in traces_by_name(network(cache_network))


def test_uncompressed_parameters_have_their_own_column():
    half = {0: Block(2, 8, 30, 60), 1: Block(8, 8, 60, 60)}
    network_data = Network({"mlp": half}, 2, "parameters", uncompressed=40.0)
    traces = traces_by_name(network(network_data))
    (slot, uncompressed_span), (mlp, uncompressed_trace) = (
        [*columns_of(network_data)],
        (traces["kept"], traces["not compressed"]),
    )
    assert uncompressed_span[0] > slot["mlp"][1]
    assert uncompressed_trace["x"][0] / mlp["x"][1] == pytest.approx(40 / 60)
    assert mlp["x"][0] / mlp["x"][1] == 0.5
    middles = [base + width / 2 for base, width in zip(mlp["base"], mlp["x"], strict=True)]
    assert middles[0] == pytest.approx(middles[1])


def test_a_latent_larger_than_its_matrix_fills_its_column():
    traces = traces_by_name(network(Network({"k": {0: Block(4, 8, 120, 100)}}, 1, "parameters")))
    assert traces["kept"]["x"] == traces["removed"]["x"]
    assert traces["removed"]["customdata"][0][6] == 1.2


def test_the_previous_ranks_are_drawn_pale_until_evidence_is_measured(store):
    values = input_values(RECIPE.with_(method="svd_llm", policy="probed"))
    traces = traces_by_name(draw_network(store, BROWSER, *values))
    assert traces["kept"]["opacity"] < 1
    assert draw_network(store, BROWSER, *input_values(RECIPE.with_(method="svd"))) == gr.skip()
