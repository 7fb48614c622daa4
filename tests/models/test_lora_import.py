"""LoRA adapters as models: merged into their base through PEFT."""

import json
import shutil
import sys

import pytest
import torch

import lrcore
from lrcore.models import gguf_import, load
from lrcore.models.lora_import import is_adapter

peft = pytest.importorskip("peft", reason="PEFT is not installed")
TOKENS = torch.arange(12)[None] % 7


@pytest.fixture
def adapter(tiny_llama, tmp_path):
    """Return a folder as saved by PEFT, and the logits of the base with the adapter."""
    return saved(tiny_llama, tmp_path / "adapter")


def saved(base, folder, **settings):
    network = lrcore.load(str(base)).network
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, lora_alpha=16, init_lora_weights=False, **settings)
    config.base_model_name_or_path = str(base)
    network.name_or_path = str(base)
    adapted = peft.get_peft_model(network, config).eval()
    adapted.save_pretrained(folder)
    with torch.no_grad():
        return folder, adapted(TOKENS).logits


def logits(model):
    with torch.no_grad():
        return model.network(TOKENS).logits


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damaged_merged_model_in_the_cache_is_merged_again(name, adapter, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    folder, expected = adapter
    model = lrcore.load(folder)
    monkeypatch.setattr(gguf_import, "_made", set())  # as in a new process
    (model.folder / name).write_bytes(b"{")
    torch.testing.assert_close(logits(lrcore.load(folder)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_merged_model_has_the_logits_of_the_adapter(settings, tiny_llama, tmp_path):
    folder, expected = saved(tiny_llama, tmp_path / "adapter", **settings)
    assert sorted(path.name for path in folder.glob("*.json")) == ["adapter_config.json"]
    state = torch.random.get_rng_state()
    model = lrcore.load(folder)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits(lrcore.load(str(tiny_llama))), expected, atol=1e-3)
    assert model.note == f"LoRA adapter merged into {tiny_llama.name}"
    assert model.name == str(folder)


def test_adapter_is_merged_once(adapter, monkeypatch):
    folder, _ = adapter
    first = lrcore.load(folder)
    monkeypatch.setattr(load, "write_merged", None)
    assert lrcore.load(folder).fingerprint == first.fingerprint


def test_model_with_an_adapter_is_offloaded_and_compressed(adapter):
    folder, expected = adapter
    model = lrcore.load(folder, offload=True)
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-5)
    recipe = lrcore.Recipe(str(folder), samples=2, seq_len=16, method="svd", ratio=0.2)
    small = lrcore.compress(lrcore.load(folder), recipe)
    assert small.note == model.note


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "auto"])
def test_merged_model_has_the_requested_dtype(dtype, adapter):
    model = lrcore.load(adapter[0], dtype=dtype)
    assert model.dtype == ("float32" if dtype == "auto" else dtype)


def changed(folder, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"base_model_name_or_path": "/nonexistent/base"}, "its base model '/nonexistent/base'"),
        ({"base_model_name_or_path": None}, "only LoRA adapters with a named base"),
        ({"peft_type": "PREFIX_TUNING"}, "only LoRA adapters with a named base"),
        ({"target_modules": ["nothing"]}, "PEFT cannot merge"),
        ({"target_modules": ["up_proj"]}, "holds '.*', which PEFT ignores|lacks '"),
        ({"r": 3}, "PEFT cannot merge"),
    ],
)
def test_adapters_that_cannot_be_merged_raise(values, reason, adapter):
    with pytest.raises(lrcore.InputError, match=reason) as refused:
        lrcore.load(changed(adapter[0], **values))
    assert "\n" not in str(refused.value)


def test_adapters_that_are_bases_of_each_other_raise(adapter, tmp_path):
    first, second = adapter[0], shutil.copytree(adapter[0], tmp_path / "second")
    changed(first, base_model_name_or_path=str(second))
    changed(second, base_model_name_or_path=str(first))
    with pytest.raises(lrcore.InputError, match="is its own base"):
        lrcore.load(first)


def test_pickled_weights_raise(adapter):
    folder, _ = adapter
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(lrcore.InputError, match=r"lacks adapter_model\.safetensors"):
        lrcore.load(folder)


def test_missing_peft_names_the_file_to_install(adapter, monkeypatch):
    monkeypatch.setattr("lrcore.models.lora_import.find_spec", lambda name: None)
    with pytest.raises(lrcore.InputError, match=r"requirements-lora\.txt"):
        lrcore.load(adapter[0])


def test_modules_named_by_an_adapter_are_not_imported(adapter, tmp_path, monkeypatch):
    (tmp_path / "named_by_adapter.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    changed(adapter[0], megatron_config={}, megatron_core="named_by_adapter")
    lrcore.load(adapter[0])
    assert "named_by_adapter" not in sys.modules


def test_model_folder_is_not_an_adapter(tiny_llama):
    assert not is_adapter(tiny_llama)
