"""LatentLLM in complete networks: exact at full rank, and bit-identical after reloading."""

from dataclasses import replace

import pytest
import torch
from safetensors import safe_open

import lrcore
from lrcore.layers.modules.projections import LowRankLinear
from lrcore.methods import latentllm
from lrcore.models.layers import clone, read_layer, write_layer

VARIANTS = [
    {},
    {"vo": "joint", "mlp": "local"},
    {"attention": "joint_qkv"},
    {"attention": "split_head", "junction": "left_identity"},
    {"attention": "local", "junction": "left_identity", "preconditioner": "diag_l2"},
    {"attention": "local", "junction": "symmetric", "bias": "add"},
]
STORED = [
    {"sparse": 0.05},
    {"bits": 8},
    {"bits": 4, "chunk": 16, "attention": "joint_qkv"},
    {"bits": 3, "sparse": 0.1, "attention": "split_head"},
]
FAMILIES = ("tiny_llama", "tiny_llama_bias", "tiny_opt")


def recipe(folder, data, **changes):
    return lrcore.Recipe(
        model=str(folder), data=str(data), samples=4, seq_len=32, method="latentllm", **changes
    )


@torch.inference_mode()
def logits(network):
    return network(input_ids=torch.arange(3, 43).view(2, 20), use_cache=False).logits


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_factors_of_full_rank_reproduce_the_dense_logits(family, options, request, story_file):
    model = lrcore.load(str(request.getfixturevalue(family)), dtype="float64")
    calibration = lrcore.calibrate(model, recipe(model.folder, story_file, dtype="float64"))
    network = clone(model.network)
    for index in range(network.config.num_hidden_layers):
        layer = read_layer(network, index)
        for factor in latentllm.factor(
            layer, calibration.moments(index), latentllm.LatentLLMOptions(**options)
        ).values():
            cost = replace(
                factor.cost, full=factor.cost.full + 1
            )  # below full rank, so that the slot changes
            layer = replace(factor, cost=cost).truncate(layer, factor.cost.full)
        write_layer(network, layer)
    assert any(isinstance(module, LowRankLinear) for module in network.modules())
    assert float((logits(model.network) - logits(network)).abs().max()) < 1e-9


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [*VARIANTS, *STORED], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_compressed_model_has_the_planned_size_and_reloads_bit_for_bit(
    family, options, request, story_file, tmp_path
):
    dense = lrcore.load(str(request.getfixturevalue(family)))
    small = lrcore.compress(dense, recipe(dense.folder, story_file, ratio=0.3, options=options))
    assert small.size.parameters == small.account.to_dict()["parameters"]
    assert small.size.decoder_linear <= 0.7 * dense.size.decoder_linear + 1e-6
    lrcore.save(small, tmp_path / "small")
    back = lrcore.load(str(tmp_path / "small"))
    assert torch.equal(logits(back.network), logits(small.network))
    assert back.size == small.size
    assert lrcore.generate(back, "Once", max_new_tokens=8) == lrcore.generate(
        small, "Once", max_new_tokens=8
    )
    with safe_open(tmp_path / "small" / "model.safetensors", "pt") as opened:
        stored = [opened.get_tensor(name) for name in opened.keys()]  # noqa: SIM118 (not a dict)
    assert sum(t.nbytes for t in stored) == small.size.stored
    if "bits" not in options and "sparse" not in options:
        assert sum(t.numel() for t in stored if t.is_floating_point()) == small.size.parameters


@pytest.mark.parametrize(("bits", "share"), [(8, 0.36), (4, 0.24)])
def test_codes_reduce_the_file_size_as_planned(bits, share, tiny_opt, story_file, tmp_path):
    dense = lrcore.load(str(tiny_opt))
    small = lrcore.compress(
        dense, recipe(dense.folder, story_file, ratio=0.2, options={"bits": bits, "chunk": 64})
    )
    embeddings = dense.size.stored - 4 * dense.size.decoder_linear  # embeddings and norms
    assert small.size.stored - embeddings < share * 0.8 * 4 * dense.size.decoder_linear
    # the file also holds orders of rows and columns
    assert small.size.megabytes == pytest.approx(small.account.to_dict()["megabytes"], rel=0.08)
    lrcore.save(small, tmp_path / "small")
    assert (tmp_path / "small" / "model.safetensors").stat().st_size < small.size.stored * 1.2 + 2e4


@pytest.mark.parametrize("calibration", ["independent", "sequential"])
@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_every_budget_is_met(calibration, ratio, tiny_opt, story_file):
    dense = lrcore.load(str(tiny_opt))
    small = lrcore.compress(
        dense, recipe(dense.folder, story_file, ratio=ratio, calibration_mode=calibration)
    )
    assert small.size.decoder_linear <= (1 - ratio) * dense.size.decoder_linear + 1e-6
    assert small.size.parameters == small.account.to_dict()["parameters"]
