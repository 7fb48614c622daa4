"""Quantized models: sizes, accuracy, saving and export."""

import json

import pytest
import torch
from elsewhere import elsewhere
from tiny_models import family_folder

import lrcore
from lrcore.evaluation.cost import bytes_on_disk
from lrcore.layers.forms import dense, quantize
from lrcore.layers.grids import least_squares_grids
from lrcore.layers.hqq import half_quadratic
from lrcore.models.architectures import ARCHITECTURES
from lrcore.models.layers import read_layer
from lrcore.recipes.history import Quantized

TOKENS = torch.arange(3, 43).view(2, 20)
METHODS = ("svd_llm", "a3", "fused", "latentllm", "care")


def logits(model):
    with torch.inference_mode():
        return model.network(input_ids=TOKENS).logits


def compressed(folder, data, method, **changes):
    recipe = lrcore.Recipe(
        model=str(folder),
        data=str(data),
        samples=4,
        seq_len=32,
        ratio=0.2,
        method=method,
        **changes,
    )
    return lrcore.compress(lrcore.load(str(folder)), recipe)


@pytest.mark.parametrize(
    ("bits", "method"),
    [*((bits, method) for bits in (8, 4) for method in METHODS), (3, "a3"), (2, "a3")],
)
def test_compressed_model_is_quantized_and_reloads_bit_for_bit(
    method, bits, tiny_llama, story_file, tmp_path
):
    small = compressed(tiny_llama, story_file, method)
    before = logits(small)
    made = lrcore.quantize(small, bits, group=16)
    assert torch.equal(logits(small), before)
    assert made.size.parameters == small.size.parameters  # codes count as parameters
    assert made.size.kv_values == small.size.kv_values
    scale = float(before.std())
    assert float((logits(made) - before).abs().mean()) < {8: 0.03, 4: 0.5}.get(bits, 1.5) * scale
    lrcore.save(made, tmp_path / "made")
    back = lrcore.load(str(tmp_path / "made"))
    assert torch.equal(logits(back), logits(made))
    assert back.size == made.size
    assert back.step(Quantized) == Quantized("nearest", bits, 16)
    assert back.account.to_dict()["megabytes"] == made.size.megabytes
    assert bytes_on_disk(made) is None
    lrcore.save(small, tmp_path / "small")
    assert made.size.stored < small.size.stored
    assert (
        made.size.stored
        <= bytes_on_disk(back)
        < bytes_on_disk(lrcore.load(str(tmp_path / "small")))
    )


@pytest.mark.parametrize(
    ("quantizer", "grids"), [("nearest", least_squares_grids), ("hqq", half_quadratic)]
)
def test_codes_depend_only_on_their_matrix(tiny_llama_bias, quantizer, grids):
    model = lrcore.load(str(tiny_llama_bias))
    made = lrcore.quantize(model, 4, group=32, quantizer=quantizer)
    for index in range(3):
        before, after = (
            read_layer(each_model.network, index).matrices() for each_model in (model, made)
        )
        for name, projection in before.items():
            expected = dense(quantize(projection.weight, 4, 32, grids))
            assert torch.equal(after[name].weight, expected)
            assert torch.equal(after[name].bias, projection.bias)
    outside = {name: t for name, t in model.network.state_dict().items() if "_proj" not in name}
    assert all(
        torch.equal(made.network.state_dict()[name], tensor) for name, tensor in outside.items()
    )
    matrices = sum(
        p.weight.numel() for i in range(3) for p in read_layer(model.network, i).matrices().values()
    )
    assert (
        model.size.stored - made.size.stored
        == matrices * 4 - matrices // 2 - matrices // 32 * 2 * 4
    )


def test_latent_shared_by_keys_and_values_stays_shared(tiny_llama, story_file):
    small = compressed(tiny_llama, story_file, "care", options={"joint": True})
    made = lrcore.quantize(small, 8, group=16)
    k, v = (read_layer(made.network, 0).matrices()[name].down for name in "kv")
    assert k.codes.data_ptr() == v.codes.data_ptr()
    assert made.size.kv_values == small.size.kv_values < lrcore.load(str(tiny_llama)).size.kv_values


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_every_family_is_quantized_and_reloaded(family, tiny_llama, tmp_path):
    model = lrcore.load(str(family_folder(family, tiny_llama, tmp_path / "dense")))
    made = lrcore.quantize(model, 8, group=16)
    scale = float(logits(model).std())
    assert float((logits(made) - logits(model)).abs().mean()) < 0.05 * scale
    assert not torch.equal(logits(made), logits(model))
    lrcore.save(made, tmp_path / "made")
    assert torch.equal(logits(lrcore.load(str(tmp_path / "made"))), logits(made))


ELSEWHERE = """
import sys, torch
from transformers import AutoModelForCausalLM
load = AutoModelForCausalLM.from_pretrained
model = load(sys.argv[1], trust_remote_code=True)
with torch.inference_mode():
    torch.save(model(torch.arange(3, 43).view(2, 20)).logits, sys.argv[2])
model.generate(torch.arange(3, 9)[None], max_new_tokens=4, pad_token_id=2)
half = load(sys.argv[1], trust_remote_code=True, dtype=torch.bfloat16)
assert torch.isfinite(half(torch.arange(3, 9)[None]).logits).all()
"""


def test_exported_codes_load_without_this_project(tiny_llama, story_file, tmp_path):
    made = lrcore.quantize(compressed(tiny_llama, story_file, "a3"), 4, group=16)
    lrcore.export(made, tmp_path / "out")
    elsewhere(ELSEWHERE, str(tmp_path / "out"), str(tmp_path / "logits.pt"), cwd=tmp_path)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), logits(made))
    assert "in groups of 16 (quantizer nearest)" in (tmp_path / "out" / "README.md").read_text()
    plain = lrcore.export(made, tmp_path / "stock", standard=True)
    assert torch.allclose(logits(lrcore.load(str(plain))), logits(made), atol=1e-4)


def test_quantize_command_writes_a_folder_that_compare_reads(
    tiny_llama, story_file, tmp_path, capsys
):
    from lrcore.cli import main

    lrcore.save(compressed(tiny_llama, story_file, "a3"), tmp_path / "small")
    assert (
        main(
            [
                "quantize",
                str(tmp_path / "small"),
                str(tmp_path / "made"),
                "--bits",
                "4",
                "--group",
                "32",
                "--json",
            ]
        )
        == 0
    )
    message = json.loads(capsys.readouterr().out)
    quantized = {"method": "nearest", "bits": 4, "group": 32, "calibration": {}}
    assert message["quantized"] == quantized
    assert message["megabytes"] < message["megabytes_before"]
    settings = ["--data", str(story_file), "--samples", "2", "--seq-len", "32", "--json"]
    assert main(["compare", str(tmp_path / "small"), str(tmp_path / "made"), *settings]) == 0
    small, made = json.loads(capsys.readouterr().out)["models"]
    assert made["perplexity"] != small["perplexity"]
    assert made["bytes_on_disk"] < small["bytes_on_disk"]
    assert main(["quantize", str(tmp_path / "small"), str(tmp_path / "new"), "--bits", "5"]) == 2
    assert "Use 8, 4, 3 or 2 bits" in capsys.readouterr().err
    assert main(["quantize", str(tmp_path / "made"), str(tmp_path / "new")]) == 2
    assert "is already quantized" in capsys.readouterr().err
