"""gpt-oss with experts in MXFP4, dequantized on loading."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import CONFIGS, copy_tokenizer, noisy
from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer

import lrcore
from lrcore.models.layers import read_layer

NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
SCALE = 124  # 2 ** (124 - 127)


@pytest.fixture
def published(tiny_llama, tmp_path):
    """Write a model; return the folder and the experts' codes by name."""
    network = noisy("gpt_oss", CONFIGS["gpt_oss"] | {"intermediate_size": 64})
    network.save_pretrained(tmp_path)
    copy_tokenizer(tiny_llama, tmp_path)
    generator, stored, codes = torch.Generator().manual_seed(4), {}, {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = tensor
            continue
        count, size_in, size_out = tensor.shape
        shape = (count, size_out, size_in // 32, 16)
        blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        codes[name] = stored[f"{name}_blocks"] = blocks
        stored[f"{name}_scales"] = torch.full(shape[:-1], SCALE, dtype=torch.uint8)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path, codes


def test_experts_in_mxfp4_are_read_and_compressed(published, story_file, tmp_path) -> None:
    folder, codes = published
    model = lrcore.load(str(folder))
    blocks = codes["model.layers.1.mlp.experts.down_proj"].long()
    nibbles = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(2)  # [experts, out, in]
    numbers = NUMBERS[nibbles & 7] * (1 - 2 * (nibbles >> 3)) * 2.0 ** (SCALE - 127)
    for number, mlp in enumerate(read_layer(model.network, 1).experts.mlps):
        assert torch.equal(mlp.down.weight, numbers[number])
    recipe = lrcore.Recipe(
        str(folder), data=str(story_file), samples=4, seq_len=32, method="a3", ratio=0.2
    )
    small = lrcore.compress(model, recipe)
    back = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    tokens = torch.arange(3, 40).unsqueeze(0)
    with torch.inference_mode():
        assert torch.equal(back.network(tokens).logits, small.network(tokens).logits)
    exported = lrcore.export(small, tmp_path / "exported")
    config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    assert "quantization_config" not in config


def test_experts_in_mxfp4_are_not_offloaded(published) -> None:
    with pytest.raises(lrcore.InputError, match=r"gpt_oss model cannot be offloaded.*without"):
        lrcore.load(str(published[0]), offload=True)


def test_quantizer_of_transformers_is_not_used(published, monkeypatch) -> None:
    """If kernels for the format exist, it leaves the experts quantized."""
    monkeypatch.setattr(Mxfp4HfQuantizer, "validate_environment", pytest.fail)
    assert lrcore.load(str(published[0])).note == "Dequantized from 4 bits (mxfp4)"
