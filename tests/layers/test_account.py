"""Accounts of plans, which equal the counts of the compressed models."""

import pytest

import lrcore
from lrcore.layers.account import LayerWork, flops_per_token
from lrcore.models.model_size import count_account, count_flops

IN_CODES = [
    {"rank_overrides": {f"{i}.{slot}": 5 for i in range(2)}} for slot in ("joint_gate_up", "up")
]
CASES = [
    ("tiny_llama", "a3", {}, {}),
    ("tiny_opt", "a3", {}, {}),
    ("tiny_llama_bias", "a3", {"ov": "overall"}, {}),
    ("tiny_opt", "modegpt", {}, {}),
    ("tiny_llama_bias", "fused", {}, {}),
    ("tiny_opt", "fused", {}, {}),
    ("tiny_llama", "svd", {}, {}),
    ("tiny_opt", "svd_llm", {}, {}),
    ("tiny_llama_bias", "compot", {}, {}),
    ("tiny_opt", "compot", {"atoms": 3}, {}),
    ("tiny_llama_bias", "fused", {"forms": "codes"}, IN_CODES[0]),
    ("tiny_opt", "fused", {"forms": "codes"}, IN_CODES[1]),
    ("tiny_llama", "care", {}, {"budget": "kv"}),
    ("tiny_llama_bias", "care", {"joint": True}, {"budget": "kv"}),
    ("tiny_llama", "care", {"group": 1}, {"budget": "kv"}),
    ("tiny_llama", "latentllm", {}, {}),
    ("tiny_llama_bias", "latentllm", {"sparse": 0.05}, {}),
    ("tiny_opt", "latentllm", {"mlp": "joint"}, {}),
    ("tiny_opt", "latentllm", {"attention": "joint_qkv"}, {}),
    ("tiny_opt", "latentllm", {"attention": "split_head", "bias": "add"}, {}),
    ("tiny_llama", "latentllm", {"bits": 8}, {}),
]


@pytest.mark.parametrize(("family", "method", "options", "changes"), CASES)
def test_account_of_a_plan_equals_the_count_of_the_model(
    family, method, options, changes, request, story_file
):
    folder = str(request.getfixturevalue(family))
    dense = lrcore.load(folder)
    recipe = lrcore.Recipe(
        folder, data=str(story_file), samples=4, seq_len=24, ratio=0.4, method=method,
        options=options, **changes,
    )  # fmt: skip
    small = lrcore.compress(dense, recipe)
    for planned, model in ((small.account.model, small), (small.account.dense, dense)):
        counted = count_account(model.network, recipe.seq_len)
        assert planned.parameters == counted.parameters
        assert planned.decoder_parameters == counted.decoder_parameters
        assert planned.kv_bytes_per_token == counted.kv_bytes_per_token
        assert planned.flops_per_token == counted.flops_per_token
    assert small.account.model.flops_per_token < small.account.dense.flops_per_token or changes


@pytest.mark.parametrize("options", [{}, {"joint": True}, {"group": 1}], ids=str)
@pytest.mark.parametrize("family", ["tiny_llama", "tiny_llama_bias", "tiny_opt"])
def test_flops_of_latents_agree_with_the_counter_of_torch(family, options, request, story_file):
    folder = str(request.getfixturevalue(family))
    recipe = lrcore.Recipe(
        folder, data=str(story_file), samples=4, seq_len=24, ratio=0.4, method="care",
        options=options,
    )  # fmt: skip
    small = lrcore.compress(lrcore.load(folder), recipe)
    context = 48
    cost = lrcore.measure_cost(small, context)
    # the formula leaves out the product of the token with itself
    assert cost.flops_decode == pytest.approx(count_flops(small.network, context), rel=0.02)


def test_flops_formula_on_two_layers():
    layers = [LayerWork(10, 2), LayerWork(20, 3)]
    assert flops_per_token(layers, head=100, context=7) == 2 * (100 + 30 + 7 * 5)
