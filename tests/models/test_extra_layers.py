"""Layers for multi-token prediction (MTP), which follow the decoder layers in the files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import CONFIGS, copy_tokenizer, noisy

import lrcore
from lrcore.models.config import family_config
from lrcore.system.errors import InputError

FIELD = "num_nextn_predict_layers"


def with_extra_layer(
    source: Path, folder: Path, family: str, declared: int | None, layers: int = 2
) -> Path:
    """Write a tiny model with the weights of a layer after its decoder layers."""
    # layers without experts, so that 61 of them are made quickly
    dense = {"num_hidden_layers": layers, "first_k_dense_replace": layers}
    noisy(family, CONFIGS[family] | dense).save_pretrained(folder)
    copy_tokenizer(source, folder)
    file, start = folder / "model.safetensors", f"model.layers.{layers}."
    state = load_file(file)
    last = f"model.layers.{layers - 1}."
    extra = {n.replace(last, start): t.clone() for n, t in state.items() if n.startswith(last)}
    extra |= {
        f"{start}{name}.weight": torch.ones(4)
        for name in (
            "enorm",
            "eh_proj",
            "embed_tokens",
            "shared_head.head",
            "mlp.experts.0.up_proj",
        )
    }
    save_file(state | extra, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop(FIELD, None)
    if declared is not None:
        config[FIELD] = declared
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("family", "offload"), [("deepseek_v3", False), ("llama", False), ("llama", True)]
)
def test_declared_extra_layers_are_ignored_with_a_note(family, offload, tiny_llama, tmp_path):
    folder = with_extra_layer(tiny_llama, tmp_path / "model", family, 1)
    model = lrcore.load(str(folder), offload=offload)
    assert model.note == "Layers for multi-token prediction are left out: 2"
    assert lrcore.load(str(lrcore.save(model, tmp_path / "saved"))).note == model.note
    for standard in (False, True):
        exported = lrcore.export(model, tmp_path / f"exported-{standard}", standard=standard)
        config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
        assert config[FIELD] == 0
        assert f"Note: {model.note}." in (exported / "README.md").read_text(encoding="utf-8")


def test_layer_ignored_by_transformers_is_named_in_the_note(tiny_llama, tmp_path):
    """transformers silently ignores layer 61 of a deepseek_v3, as in DeepSeek-V3."""
    folder = with_extra_layer(tiny_llama, tmp_path / "model", "deepseek_v3", 1, 61)
    expected_note = "Layers for multi-token prediction are left out: 61"
    assert lrcore.load(str(folder)).note == expected_note


@pytest.mark.parametrize("layers", [2, 61])
@pytest.mark.parametrize("declared", [None, 0])
def test_undeclared_extra_layers_raise(declared, layers, tiny_llama, tmp_path):
    folder = with_extra_layer(tiny_llama, tmp_path, "deepseek_v3", declared, layers)
    with pytest.raises(InputError, match=rf"model\.layers\.{layers}.*calls for {layers} layers"):
        lrcore.load(str(folder))


def test_layer_after_the_declared_layers_raises(tiny_llama, tmp_path):
    folder = with_extra_layer(tiny_llama, tmp_path, "llama", 1)
    file = folder / "model.safetensors"
    state = load_file(file) | {"model.layers.3.input_layernorm.weight": torch.ones(32)}
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match="1 for multi-token prediction"):
        lrcore.load(str(folder))


def test_family_config_declares_no_extra_layers():
    config = noisy("deepseek_v3", CONFIGS["deepseek_v3"] | {FIELD: 1}).config
    assert getattr(family_config(config, "model"), FIELD) == 0
    assert getattr(config, FIELD) == 1
