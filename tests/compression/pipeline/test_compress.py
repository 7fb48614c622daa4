"""The pipeline on tiny models: factorize once, allocate often, compress in both modes."""

from functools import cache

import pytest
import torch
from tiny_models import SAME

import lrcore
from lrcore.methods import METHODS
from lrcore.models.model_size import measure

FOLDERS = ["tiny_llama", "tiny_llama_bias", "tiny_opt"]


@pytest.fixture(scope="module", params=FOLDERS)
def model(request):
    return lrcore.load(str(request.getfixturevalue(request.param)))


@pytest.fixture(scope="module")
def recipe(story_file):
    return lrcore.Recipe(data=str(story_file), samples=6, seq_len=32)


@pytest.fixture(scope="module")
def prepared(model, recipe):
    """Return a cached function from a method to the factors of the model."""
    return cache(lambda method: lrcore.prepare(model, recipe.with_(method=method)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", sorted(METHODS.keys() - SAME))
@pytest.mark.parametrize("mode", ["independent", "sequential"])
def test_model_size_equals_the_plan(model, recipe, method: str, mode: str) -> None:
    # CARE's latent of keys and values has at most half the cache of OPT
    ratio = 0.6 if METHODS[method].components == ("kv",) else 0.35
    recipe = recipe.with_(method=method, ratio=ratio, calibration_mode=mode)
    small = lrcore.compress(model, recipe)
    size, summary = measure(small.network), small.account.to_dict()
    assert size.parameters == summary["parameters"]
    assert summary["dense_parameters"] == measure(model.network).parameters
    assert summary[f"removed_{summary['budget']}"] == summary["achieved"]
    assert size.decoder_linear == summary["decoder_parameters"]
    assert size.kv_bytes == summary["kv_bytes_per_token"]
    assert summary["dense_kv_bytes_per_token"] == measure(model.network).kv_bytes
    # tiny layers have coarse steps
    assert ratio <= summary["achieved"] < ratio + 0.1
    tokens = torch.arange(3, 43).unsqueeze(0)
    assert torch.isfinite(small.network(tokens).logits).all()
    assert small.recipe.to_dict() == recipe.to_dict()
    removed = sum(row.dense_parameters - row.parameters for row in small.ranks)
    assert removed == measure(model.network).decoder_linear - size.decoder_linear


@pytest.mark.parametrize("budget", ["params", "all_params", "kv"])
def test_achieved_ratio_meets_the_requested_ratio_in_its_unit(model, recipe, budget: str) -> None:
    recipe = recipe.with_(ratio=0.3, budget=budget)
    factors = lrcore.factorize(model, lrcore.calibrate(model, recipe), "modegpt")
    summary = lrcore.allocate(factors, recipe).summary()
    assert summary["achieved"] == summary[f"removed_{budget}"]
    assert 0.3 - 1e-9 <= summary["achieved"] < 0.42


def test_kept_share_of_a_layer_is_its_share_of_parameters(model, recipe) -> None:
    plan = lrcore.allocate(
        lrcore.prepare(model, recipe.with_(policy="softmax", ratio=0.3)),
        recipe.with_(policy="softmax", ratio=0.3),
    )
    by_layer = plan.table().groupby("layer")[["parameters", "dense_parameters"]].sum()
    assert plan.kept_by_layer() == pytest.approx(
        (by_layer["parameters"] / by_layer["dense_parameters"]).tolist()
    )


def test_allocation_makes_no_decompositions(tiny_llama, recipe, monkeypatch) -> None:
    model = lrcore.load(str(tiny_llama))
    factors = lrcore.factorize(model, lrcore.calibrate(model, recipe), "a3")
    for name in ("eigh", "svd", "qr", "cholesky", "cholesky_ex", "svdvals"):
        monkeypatch.setattr(
            torch.linalg, name, lambda *_, **__: pytest.fail("allocation decomposed a matrix")
        )
    for ratio in (0.2, 0.5):
        plan = lrcore.allocate(factors, recipe.with_(ratio=ratio, policy="softmax"))
        lrcore.compress(model, recipe.with_(ratio=ratio), factors, plan)


def test_sequential_mode_solves_later_layers_on_compressed_inputs(tiny_llama, recipe) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = recipe.with_(method="svd_llm", ratio=0.4)
    first, second = (
        lrcore.compress(model, recipe.with_(calibration_mode=mode)).network
        for mode in ("independent", "sequential")
    )

    def down(network, layer):
        return network.model.layers[layer].mlp.down_proj.up.weight

    assert not torch.allclose(down(first, 2), down(second, 2), atol=1e-4)
    # in the first layer both modes see the same dense input of the attention
    assert torch.allclose(
        *(n.model.layers[0].self_attn.q_proj.down.weight.abs() for n in (first, second)), atol=1e-4
    )


def test_rank_overrides_reach_the_model_and_invalid_ones_raise(tiny_llama, recipe) -> None:
    model = lrcore.load(str(tiny_llama))
    small = lrcore.compress(model, recipe.with_(ratio=0.4, rank_overrides={"1.mlp": 40, "0.qk": 8}))
    assert small.network.model.layers[1].mlp.up_proj.out_features == 40
    for overrides, message in (
        ({"9.mlp": 3}, "layers 0 to 2"),
        ({"0.gate": 3}, "qk, ov, mlp|mlp, ov, qk"),
        ({"0.qk": 3}, "steps of 2"),
    ):
        with pytest.raises(lrcore.InputError, match=message):
            lrcore.compress(model, recipe.with_(rank_overrides=overrides))


def test_unknown_methods_and_policies_raise_with_a_suggestion(tiny_llama, recipe) -> None:
    model = lrcore.load(str(tiny_llama))
    with pytest.raises(lrcore.InputError, match="Did you mean 'modegpt'"):
        lrcore.compress(model, recipe.with_(method="modgpt"))
    with pytest.raises(lrcore.InputError, match="Did you mean 'softmax'"):
        lrcore.compress(model, recipe.with_(policy="sofmax"))


def test_full_width_maps_reproduce_the_dense_logits_in_float64(tiny_opt, recipe) -> None:
    """Apply all maps at full width: W^ = T^{-1} T W up to rounding."""
    from dataclasses import replace

    from lrcore.models.layers import clone, read_layer, write_layer

    model = lrcore.load(str(tiny_opt), dtype="float64")
    factors = lrcore.factorize(model, lrcore.calibrate(model, recipe), "a3")
    network = clone(model.network)
    for index, layer_factors in enumerate(factors.layers):
        layer = read_layer(network, index)
        for name in ("qk", "ov"):
            wider = replace(
                layer_factors[name],
                cost=replace(layer_factors[name].cost, full=layer_factors[name].cost.full + 1),
            )
            layer = wider.truncate(layer, layer_factors[name].cost.full)
        write_layer(network, layer)
    tokens = torch.arange(3, 43).unsqueeze(0)
    with torch.inference_mode():
        assert torch.allclose(network(tokens).logits, model.network(tokens).logits, atol=1e-9)
        assert not torch.equal(
            read_layer(network, 0).attention.q.weight,
            read_layer(model.network, 0).attention.q.weight,
        )


@pytest.mark.parametrize("policy", ["softmax", "softmax_dual", "energy", "marginal"])
def test_component_ratios_hold_and_replace_the_overall_ratio_if_all_are_set(
    prepared, recipe, policy: str
) -> None:
    for method in ("svd_llm", "modegpt"):
        factors = prepared(method)
        names = {component for _, component in factors.spectra}
        first = sorted(names)[0]
        plan = lrcore.allocate(
            factors,
            recipe.with_(method=method, policy=policy, ratio=0.3, component_ratios={first: 0.4}),
        )
        table = plan.table()
        layer_factors = table[table.component == first]
        assert 1 - layer_factors.parameters.sum() / layer_factors.dense_parameters.sum() >= 0.4
        assert plan.summary()["achieved"] >= 0.3
        equal_ratios = dict.fromkeys(names, 0.4)
        uniform_plan = lrcore.allocate(
            factors,
            recipe.with_(method=method, policy=policy, ratio=0.1, component_ratios=equal_ratios),
        ).summary()
        assert uniform_plan["achieved"] == uniform_plan["requested"] >= 0.4


def test_influences_of_attention_and_mlp_equal_mean_cosines(model, recipe) -> None:
    result = lrcore.calibrate(model, recipe).influence
    assert all(len(result[part]) == len(result["block"]) for part in ("attention", "mlp"))
    with torch.inference_mode():
        hidden = model.network(
            lrcore.calibrate(model, recipe).tokens, output_hidden_states=True
        ).hidden_states
    layer = len(result["block"]) - 2  # the last hidden state is normed
    seen = {}
    module = next(
        m for name, m in model.network.named_modules() if name.endswith(f"layers.{layer}.self_attn")
    )
    handle = module.register_forward_hook(lambda _m, _a, out: seen.update(out=out[0]))
    with torch.inference_mode():
        model.network(lrcore.calibrate(model, recipe).tokens)
    handle.remove()
    middle = hidden[layer] + seen["out"]
    for part, (start, end) in {
        "attention": (hidden[layer], middle),
        "mlp": (middle, hidden[layer + 1]),
    }.items():
        expected = 1 - float(torch.nn.functional.cosine_similarity(start, end, dim=-1).mean())
        assert result[part][layer] == pytest.approx(expected, abs=1e-5)
