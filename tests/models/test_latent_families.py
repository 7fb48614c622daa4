"""Families with multi-head latent attention: what is factored there, and what is not."""

import pytest
import torch
from tiny_models import family_folder, tiny
from transformers import AutoModelForCausalLM

import lrcore
from lrcore import InputError
from lrcore.evaluation.contributions import mixed
from lrcore.models.counting import count_account
from lrcore.models.layers import read_layer
from lrcore.modules.projections import LowRankLinear

TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))
NAMES = {
    "deepseek_v2": ["q", "kv_a", "kv_b", "o"],
    "deepseek_v3": ["q_a", "q_b", "kv_a", "kv_b", "o"],
}


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tiny_llama, tmp_path_factory):
    return family_folder(request.param, tiny_llama, tmp_path_factory.mktemp("mla") / request.param)


@pytest.fixture
def recipe(folder, story_file):
    return lrcore.Recipe(str(folder), data=str(story_file), samples=4, seq_len=32, ratio=0.2)


def logits(network):
    with torch.inference_mode():
        return network(TOKENS).logits


@pytest.mark.parametrize("family", NAMES)
def test_the_matrices_are_those_of_the_family(family):
    """The cache holds one latent and one rotated key per token."""
    network = tiny(family)
    for index in range(2):
        layer = read_layer(network, index)
        assert [n for n in layer.matrices() if n not in ("gate", "up", "down")] == NAMES[family]
        assert layer.attention.kv_values == 16 + 4
        assert layer.components == (("mlp",) if layer.mlp else ())
    cache = network(TOKENS, use_cache=True).past_key_values
    held = sum(t.numel() for one in cache.layers for t in (one.keys, one.values))
    assert held == 2 * TOKENS.numel() * (16 + 4)


@pytest.mark.parametrize("method", ["svd", "svd_llm", "bolaco", "latentllm", "fused", "aa_svd"])
def test_plan_and_model_have_one_account(folder, recipe, method):
    model = lrcore.load(str(folder))
    order = "sequential" if method == "aa_svd" else "independent"
    small = lrcore.compress(model, recipe.with_(method=method, calibration=order))
    counted = count_account(small.network, recipe.seq_len)
    for name in ("parameters", "decoder_parameters", "kv_bytes_per_token", "flops_per_token"):
        assert getattr(small.account.model, name) == getattr(counted, name)
    assert small.size.kv_values == model.size.kv_values
    pairs = [m for m in small.network.modules() if isinstance(m, LowRankLinear)]
    assert pairs
    assert lrcore.generate(small, "Once", max_new_tokens=4)
    again = lrcore.compress(small, recipe.with_(method="svd", ratio=0.1))
    assert again.size.parameters < small.size.parameters


def test_every_matrix_is_analysed_and_parts_are_exchanged(folder, recipe):
    model = lrcore.load(str(folder))
    analysis = lrcore.analyse(model, lrcore.calibrate(model, recipe))
    assert {*NAMES[model.network.config.model_type]} <= {*analysis.matrices}
    small = lrcore.compress(model, recipe.with_(method="svd_llm"))
    whole = mixed(model, small, ("qk", "ov", "mlp"))
    assert torch.allclose(logits(whole.network), logits(small.network), atol=1e-5)
    one = mixed(model, small, ("ov",))
    assert not torch.allclose(logits(one.network), logits(model.network), atol=1e-5)
    errors = lrcore.local_errors(model, small, recipe.data, samples=2, seq_len=32)
    assert all(row["attention"] > 0 for row in errors.errors)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "care"},
        {"method": "fused", "budget": "kv"},
        {"method": "latentllm", "options": {"vo": "joint"}},
    ],
)
def test_what_would_replace_the_attention_is_refused(folder, recipe, fields):
    with pytest.raises(InputError, match="stays as its family has it"):
        lrcore.prepare(lrcore.load(str(folder)), recipe.with_(**fields))


def test_even_experts_and_mlps_load_without_code(folder, recipe, tmp_path):
    model = lrcore.load(str(folder))
    small = lrcore.prune_experts(model, recipe, lrcore.ExpertPruning(2))
    lrcore.export(small, tmp_path / "stock", stock=True)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "stock", dtype=torch.float32)
    assert loaded.num_parameters() == small.size.parameters
    assert torch.allclose(logits(loaded), logits(small.network), atol=1e-5)
    step = small.step(lrcore.ExpertsPruned)
    assert sorted(number // 4 for _, number, _ in step.pruned) == [0, 1]  # one of every group
    for pruning in (
        lrcore.ExpertPruning(1),
        lrcore.ExpertPruning(6),
        lrcore.ExpertPruning(2, by="loss"),
    ):
        with pytest.raises(InputError, match="2 groups of 4"):
            lrcore.prune_experts(model, recipe, pruning)
