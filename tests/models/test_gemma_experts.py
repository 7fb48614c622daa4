"""A small Gemma 4 26B: routed experts parallel to an MLP of all tokens."""

import pytest
import torch
from tiny_models import CONFIGS, copy_tokenizer, noisy, structures_of

import lrcore
from lrcore.compression.steps.expert_pruning.mixtures import expert_count
from lrcore.compression.steps.step_settings import ExpertPruning
from lrcore.layers.modules.compressed import CompressedExperts
from lrcore.models.layers import read_layer

FIELDS = CONFIGS["gemma4_text"] | {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}
TOKENS = torch.randint(3, 300, (4, 24), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def folder(tiny_llama, tmp_path_factory):
    path = tmp_path_factory.mktemp("gemma") / "experts"
    noisy("gemma4_text", FIELDS).save_pretrained(path)
    copy_tokenizer(tiny_llama, path)
    return path


@pytest.fixture
def model(folder):
    return lrcore.load(str(folder))


def recipe_for(model, story_file, **fields):
    fields_used = {"samples": 8, "seq_len": 16, "ratio": 0.3} | fields
    return lrcore.Recipe(model.name, data=str(story_file), **fields_used)


def logits(model):
    with torch.inference_mode():
        return model.network(TOKENS).logits


def test_experts_of_a_layer_are_read_and_its_mlp_is_shared(model):
    layer = read_layer(model.network, 1)
    assert layer.mlp is None
    assert layer.experts.active == 2
    assert [element.up.weight.shape for element in layer.experts.mlps] == [(24, 32)] * 4
    fields_used = CompressedExperts.of(layer.experts)
    seen = []
    native = model.network.model.layers[1].experts
    handle = native.register_forward_hook(lambda _m, args, out: seen.append((args, out)))
    logits(model)
    handle.remove()
    args, out = seen[0]
    assert torch.allclose(fields_used(*args), out, atol=1e-5)


@pytest.mark.parametrize("method", structures_of("gemma4_text"))
def test_experts_are_compressed_and_reloaded(method, model, story_file, tmp_path):
    small = lrcore.compress(model, recipe_for(model, story_file, method=method))
    for write in (lrcore.save, lrcore.export):
        back = lrcore.load(write(small, tmp_path / write.__name__))
        assert torch.allclose(logits(back), logits(small), atol=1e-4)
    before, after = (read_layer(element.network, 1).experts for element in (model, small))
    assert sum(map(_size, after.mlps)) < sum(map(_size, before.mlps))
    shared = [element.network.model.layers[1].mlp.up_proj.weight for element in (model, small)]
    assert torch.equal(*shared)


def _size(mlp):
    return sum(p.parameters for p in mlp.matrices().values())


@pytest.mark.parametrize("by", ["activation", "loss"])
def test_pruned_expert_is_gone_after_reloading(by, model, story_file, tmp_path):
    small = lrcore.prune_experts(
        model, recipe_for(model, story_file), ExpertPruning(experts=1, criterion=by)
    )
    assert expert_count(small.network) == 3
    back = lrcore.load(lrcore.save(small, tmp_path / "three"))
    assert torch.allclose(logits(back), logits(small), atol=1e-5)
