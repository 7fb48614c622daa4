"""Routed experts, which are solved on their tokens and routing weights."""

import pytest
import torch
from method_options import UNDAMPED
from tiny_models import family_folder, tiny
from torch.nn.functional import linear, silu

import lrcore
from lrcore import InputError
from lrcore.compression.calibration.gradients import PASSES, collect
from lrcore.compression.pipeline.model_bounds import plan_bounds
from lrcore.layers.experts import expert_moments, expert_needs, expert_weights, missing_tokens
from lrcore.layers.layer import MLP
from lrcore.layers.modules.compressed import CompressedExperts
from lrcore.layers.statistics import Moments, activation_needs
from lrcore.methods import METHODS, spectrum, truncate
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.model_size import count_account, layer_work
from lrcore.models.stream import LayerStream
from lrcore.recipes.history import Compressed
from lrcore.system.progress import silent

TOKENS = torch.randint(3, 300, (24, 32), generator=torch.Generator().manual_seed(5))
ABLE = [name for name, row in METHODS.items() if row.solves_experts]
NEEDS = activation_needs(need for name in ABLE for need in METHODS[name].needs)


def routed(network, tokens, layer=0):
    """Return inputs [n, d] of the experts of a layer, the chosen experts and their weights [n,
    active].
    """
    seen = []
    module = network.model.layers[layer].mlp.experts
    handle = module.register_forward_pre_hook(lambda _module, args: seen.append(args))
    network(tokens)
    handle.remove()
    return seen[0]


def outputs(mlp: MLP, x):
    hidden = silu(linear(x, mlp.gate.weight)) * linear(x, mlp.up.weight)
    return hidden, linear(hidden, mlp.down.weight, mlp.down.bias)


def moments_of(network, tokens):
    """Return the moments of the first layer, including the curvatures of its outputs."""
    moments = LayerStream(network, tokens, batch=8).run(0, NEEDS)
    curvatures = next(iter(collect(network, tokens, silent, PASSES["text"])))
    return Moments({**moments.values, **curvatures.values}, moments.tokens)


@pytest.fixture(scope="module")
def network():
    return tiny("mixtral")


@pytest.fixture(scope="module")
def solved(network):
    """Return a layer of four experts, its moments, and the inputs of its experts."""
    return read_layer(network, 0), moments_of(network, TOKENS), routed(network, TOKENS)


def test_moments_of_an_expert_are_weighted_by_its_squared_routing_weights(solved) -> None:
    layer, moments, (x, chosen, weights) = solved
    assert not missing_tokens(layer, moments).any()
    for number, mlp in enumerate(layer.experts.mlps):
        tokens, slots = torch.where(chosen == number)
        by = weights[tokens, slots].double().unsqueeze(1) ** 2
        expert = expert_moments(layer, moments, number)
        assert expert.tokens == len(tokens)
        states = {"mlp_in": x[tokens], "mlp_hidden": outputs(mlp, x[tokens])[0]}
        for tap, narrow in states.items():
            state = narrow.double()
            second = (by * state).mT @ state / by.sum()
            assert torch.allclose(expert.second(tap), second, rtol=1e-5, atol=1e-6)
            mean = (by * state).sum(0) / by.sum()
            assert torch.allclose(expert.mean(tap), mean, rtol=1e-4, atol=1e-7)
        share = by.sum() / len(x)
        assert float(expert_weights(layer, moments)[number]) == pytest.approx(
            float(share), rel=1e-5
        )


@pytest.mark.parametrize("method", ["svd_llm", "modegpt"])
def test_loss_curve_is_the_output_error_summed_over_experts(method, solved) -> None:
    """Check the down projection and refit neurons, with the mean squared error of each expert's
    share of the output.
    """
    layer, moments, (x, chosen, weights) = solved
    name = "down" if method == "svd_llm" else "mlp"
    options = METHODS[method].choose(UNDAMPED.get(method, {}))
    factor = METHODS[method].factor(layer, moments, options)[name]
    small = factor.truncate(layer, 20)
    error = 0.0
    for number, pair in enumerate(zip(layer.experts.mlps, small.experts.mlps, strict=True)):
        tokens, slots = torch.where(chosen == number)
        before, after = (outputs(mlp, x[tokens])[1].double() for mlp in pair)
        gap = (before - after) * weights[tokens, slots].double().unsqueeze(1)
        error += float(gap.square().sum()) / len(x)
    assert spectrum(0, name, factor).tail(20) == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize("method", ABLE)
def test_cost_of_a_rank_equals_the_parameters_and_products_of_the_layer(method, solved) -> None:
    layer, moments, _ = solved
    factors = METHODS[method].factor(layer, moments)
    for name, factor in factors.items():
        if name not in ("mlp", "gate", "up", "down"):
            continue
        cost = factor.cost
        assert (cost.copies, cost.active) == (4, 2)
        small = truncate(layer, factors, {name: cost.ranks()[3]})
        change = cost.parameters(cost.ranks()[3]) - cost.dense
        assert small.parameters - layer.parameters == change
        work = layer_work(small).weights - layer_work(layer).weights
        assert work == cost.products(cost.ranks()[3]) - cost.products(cost.full)


def test_rare_experts_are_pooled_with_other_tokens_of_the_layer(network) -> None:
    """With 12 tokens, each expert has fewer tokens than the width of its matrices; a sample of all
    tokens replaces the missing ones.
    """
    tokens = TOKENS[:1, :12]
    layer, moments = read_layer(network, 0), LayerStream(network, tokens).run(0, NEEDS)
    x, chosen, weights = (tensor.double() for tensor in routed(network, tokens))
    typical = float((weights**2).mean())
    for number, mlp in enumerate(layer.experts.mlps):
        rows, slots = torch.where(chosen == number)
        squares = weights[rows, slots].unsqueeze(1) ** 2
        lacking = 48 - len(rows)
        assert float(missing_tokens(layer, moments)[number]) == pytest.approx(lacking)
        hidden = outputs(mlp, x.float())[0].double()
        pooled = lacking * typical * hidden.mT @ hidden / len(x)
        second = (squares * hidden[rows]).mT @ hidden[rows] + pooled
        measured = expert_moments(layer, moments, number).second("mlp_hidden")
        assert torch.allclose(
            measured, second / (squares.sum() + lacking * typical), rtol=1e-4, atol=1e-7
        )


def test_expert_without_tokens_is_solved(network) -> None:
    tokens = TOKENS[:1, :1]
    layer, moments = read_layer(network, 0), moments_of(network, tokens)
    assert sorted(expert_weights(layer, moments).tolist())[:2] == [0.0, 0.0]
    for method in ABLE:
        factors = METHODS[method].factor(layer, moments)
        names = ("mlp",) if "mlp" in factors else ("gate", "up", "down")
        small = truncate(layer, factors, {name: factors[name].cost.ranks()[3] for name in names})
        held = small.projections_named(("gate", "up", "down"))
        assert all(torch.isfinite(projection.weight).all() for projection in held)


def test_needs_without_mlp_moments_are_unchanged() -> None:
    needs = frozenset({("attn_in", "second"), ("mlp", "influence"), ("mlp_in", "sample")})
    assert expert_needs(needs, 4) == needs


def test_separate_experts_give_the_logits_of_stacked_experts(network) -> None:
    """Doubling and halving a weight separates the modules without changing the numbers."""
    copy = clone(network)
    for factor in (2.0, 0.5):
        layer = read_layer(copy, 0)
        mlps = [layer.experts.mlps[0], *layer.experts.mlps[1:]]
        down = mlps[0].down
        mlps[0] = MLP(mlps[0].up, type(down)(factor * down.weight), mlps[0].gate, "silu")
        write_layer(copy, layer.with_experts(mlps))
    assert isinstance(copy.model.layers[0].mlp.experts, CompressedExperts)
    assert torch.allclose(copy(TOKENS).logits, network(TOKENS).logits, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tiny_llama, tmp_path_factory):
    return family_folder("mixtral", tiny_llama, tmp_path_factory.mktemp("moe") / "mixtral")


def recipe_of(folder, story_file, **fields):
    return lrcore.Recipe(str(folder), data=str(story_file), samples=4, seq_len=32, **fields)


def test_account_of_a_plan_equals_the_model_also_if_compressed_again(folder, story_file) -> None:
    model = lrcore.load(str(folder))
    for method in ("svd_llm", "fused"):
        recipe = recipe_of(
            folder, story_file, method=method, ratio=0.3, calibration_mode="sequential"
        )
        small = lrcore.compress(model, recipe)
        assert (
            count_account(small.network, 32).flops_per_token == small.account.model.flops_per_token
        )
        assert count_account(small.network, 32).parameters == small.account.model.parameters
        smaller = lrcore.compress(small, recipe.with_(method="a3", ratio=0.1))
        assert smaller.size.parameters == smaller.account.model.parameters < small.size.parameters


@pytest.mark.parametrize(
    ("method", "options"), [("kfac_svd", {}), ("svd_llm", {"outputs": "curvature"})]
)
def test_experts_are_compressed_in_the_metric_of_their_outputs(
    folder, story_file, method: str, options: dict
) -> None:
    model = lrcore.load(str(folder))
    recipe = recipe_of(folder, story_file, method=method, ratio=0.3, options=options)
    small = lrcore.compress(model, recipe)
    assert small.account.achieved >= 0.3
    plain = lrcore.compress(model, recipe.with_(method="svd_llm", options={}))
    ours, theirs = (read_layer(m.network, 1).experts.mlps[2].gate for m in (small, plain))
    assert ours.rank == theirs.rank
    assert not torch.allclose(ours.weight, theirs.weight)


def test_options_and_policies_without_support_for_experts_raise(folder, story_file) -> None:
    model = lrcore.load(str(folder))
    for fields, why in (
        ({"method": "svd", "options": {"weights": "fisher"}}, "weights=fisher of svd"),
        ({"method": "a3", "options": {"mlp": "taylor"}}, "mlp=taylor of a3"),
        ({"method": "svd_llm", "policy": "fisher"}, "policy fisher"),
        ({"method": "svd_llm", "policy": "zs_svd"}, "policy zs_svd"),
    ):
        message = rf"has experts, of which no gradients are collected\. Change {why}: .* none: svd,"
        with pytest.raises(InputError, match=message):
            lrcore.compress(model, recipe_of(folder, story_file, ratio=0.2, **fields))
    with pytest.raises(
        InputError, match=r"leaves the experts as they are: .* svd, svd_llm, kfac_svd, bolaco"
    ):
        lrcore.compress(model, recipe_of(folder, story_file, ratio=0.5, method="clover"))
    cached = recipe_of(folder, story_file, ratio=0.9, method="clover", budget="kv")
    with pytest.raises(InputError, match=r"at most [0-9.]+\. Lower the ratio\.$"):
        lrcore.compress(model, cached)  # experts have no cache


def test_joint_values_and_output_raise_for_attention_sinks(
    tiny_llama, story_file, tmp_path
) -> None:
    """The bias of the output absorbs that of the values only if attention weights sum to 1."""
    folder = family_folder("gpt_oss", tiny_llama, tmp_path / "sinks")
    for vo in ("joint", "attention"):
        recipe = recipe_of(folder, story_file, method="latentllm", options={"vo": vo})
        with pytest.raises(InputError, match="do not sum to one"):
            lrcore.prepare(lrcore.load(str(folder)), recipe)


def test_error_bounds_of_experts_hold(folder, story_file) -> None:
    model, recipe = (
        lrcore.load(str(folder)),
        recipe_of(folder, story_file, method="modegpt", ratio=0.3),
    )
    factors = lrcore.prepare(model, recipe)
    rows = plan_bounds(model, factors, lrcore.allocate(factors, recipe))
    mlp_rows = [row for row in rows if row["component"] == "mlp" and row["rank"] < 48]
    assert mlp_rows
    for row in mlp_rows:
        assert row["bound"] is None or 0 < row["error"] <= row["bound"]


def test_history_reports_the_number_of_rare_experts(folder, story_file) -> None:
    model = lrcore.load(str(folder))
    for fields, minimum in (({"samples": 1}, 1), ({"samples": 60}, 0), ({"method": "care"}, 0)):
        recipe = recipe_of(folder, story_file, ratio=0.2).with_(**{"method": "a3", **fields})
        step = lrcore.compress(model, recipe).history[-1]
        calibration = lrcore.calibrate(model, recipe)
        lacking = [
            missing_tokens(read_layer(model.network, layer), calibration.moments(layer))
            for layer in range(2)
        ]
        rare = int((torch.stack(lacking) > 0).sum())
        assert rare == calibration.rare_experts
        assert step.calibration.get("rare_experts", 0) == (rare if minimum else 0)
        assert step.about_experts.startswith(f"{rare} experts received fewer" if minimum else "")
        assert bool(step.about_experts) == bool(minimum)


def test_latents_shrink_the_cache_and_keep_the_experts(folder, story_file) -> None:
    recipe = recipe_of(folder, story_file, method="fused", budget="kv", ratio=0.4)
    model = lrcore.load(recipe.model)
    small = lrcore.compress(model, recipe)
    assert 0.4 <= small.account.achieved < 0.5
    forms = {"qk", "ov", "latent_k", "latent_v"}
    assert {row.component for row in small.step(Compressed).ranks} <= forms
    experts = [read_layer(loaded.network, 1).experts for loaded in (model, small)]
    assert torch.equal(experts[0].mlps[0].up.weight, experts[1].mlps[0].up.weight)
