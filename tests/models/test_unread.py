"""Tensors that no module reads: an error, a note, or silence."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import CONFIGS, copy_tokenizer, noisy, tiny

import lrcore
from lrcore.system.errors import InputError

ATTENTION = "model.layers.1.self_attn"


@pytest.fixture(params=[False, True], ids=["loaded", "offloaded"])
def offload(request):
    return request.param


@pytest.fixture
def with_tensors(tiny_llama, tmp_path):
    """Return a function that writes the tiny Llama with additional tensors."""

    def write(tensors, family=None):
        folder = shutil.copytree(tiny_llama, tmp_path / "model", dirs_exist_ok=True)
        if family is not None:
            tiny(family).save_pretrained(folder)
        file = folder / "model.safetensors"
        save_file(load_file(file) | tensors, file, metadata={"format": "pt"})
        return folder

    return write


@pytest.mark.parametrize(
    ("name", "cause"),
    {
        f"{ATTENTION}.q_proj.bias": "belong to different models",
        f"{ATTENTION}.q_norm.weight": "belong to different models",
        f"{ATTENTION}.q_proj.lora_A.default.weight": "merge_and_unload",
        f"{ATTENTION}.q_proj.weight_scale_inv": "unquantized",
        f"{ATTENTION}.input_layernorm.bias": "belong to different models",
        "model.norm.bias": "belong to different models",
        "lm_head.bias": "belong to different models",
    }.items(),
)
def test_unread_tensor_of_the_network_raises(name, cause, with_tensors, offload):
    folder = with_tensors({name: torch.ones(8)})
    with pytest.raises(InputError) as caught:
        lrcore.load(str(folder), offload=offload)
    assert f"'{name}'" in str(caught.value)
    assert cause in str(caught.value)


def test_error_names_the_first_tensors_and_counts_the_others(with_tensors, offload):
    names = [f"model.layers.{i}.self_attn.{p}_proj.bias" for i in range(2) for p in "qkv"]
    folder = with_tensors({name: torch.ones(8) for name in names})
    with pytest.raises(InputError, match=r"layers.0.self_attn.k_proj.bias.*and 2 more"):
        lrcore.load(str(folder), offload=offload)


def test_qwen3_as_a_llama_raises(tiny_llama, tmp_path, offload):
    noisy("qwen3", CONFIGS["qwen3"]).save_pretrained(tmp_path)
    copy_tokenizer(tiny_llama, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    with pytest.raises(InputError, match="q_norm"):
        lrcore.load(str(tmp_path), offload=offload)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("llama", [f"{ATTENTION}.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]),
        ("llama", [f"{ATTENTION}.rotary_emb.cos_cached", f"{ATTENTION}._extra_state"]),
        ("gpt2", ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"]),
        ("gpt_neo", [f"transformer.h.0.attn.attention.{n}" for n in ("bias", "masked_bias")]),
        ("gpt_neox", [f"gpt_neox.layers.0.attention.{n}" for n in ("bias", "masked_bias")]),
        ("gptj", ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"]),
    ],
)
def test_computed_tensors_pass_without_a_note(family, names, with_tensors, offload):
    folder = with_tensors({name: torch.ones(4) for name in names}, family)
    assert lrcore.load(str(folder), offload=offload).note == ""


def test_zero_biases_pass_without_a_note(with_tensors, offload):
    """AutoGPTQ stored zero biases for all matrices."""
    biases = {f"{ATTENTION}.{name}_proj.bias": torch.zeros(32) for name in "qo"}
    assert lrcore.load(str(with_tensors(biases)), offload=offload).note == ""


def test_unprefixed_masks_of_gpt2_pass_without_a_note(with_tensors, offload):
    folder = with_tensors({}, "gpt2")
    file = folder / "model.safetensors"
    state = {n.removeprefix("transformer."): tensor for n, tensor in load_file(file).items()}
    state["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    save_file(state, file, metadata={"format": "pt"})
    assert lrcore.load(str(folder), offload=offload).note == ""
    save_file(state | {"h.0.attn.gate.weight": torch.ones(4)}, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"h\.0\.attn\.gate\.weight"):
        lrcore.load(str(folder), offload=offload)


HEADS = {
    "v_head.summary.weight": torch.ones(1, 32),
    "v_head.summary.bias": torch.ones(1),
    "mtp.layers.0.self_attn.q_proj.weight": torch.ones(4, 4),
    "model.mtp.norm.weight": torch.ones(4),
}


def test_note_about_other_tensors_is_in_saved_models_and_cards(
    with_tensors, offload, story_file, tmp_path
):
    model = lrcore.load(str(with_tensors(HEADS)), offload=offload)
    for part in ("v_head (2)", "mtp (1)", "model.mtp (1)"):
        assert part in model.note
    recipe = lrcore.Recipe(data=str(story_file), samples=2, seq_len=16, method="svd", ratio=0.2)
    small = lrcore.compress(model, recipe)
    saved = lrcore.save(small, tmp_path / "saved")
    assert small.note == lrcore.load(str(saved), offload=offload).note == model.note
    for standard in (False, True):
        folder = lrcore.export(model, tmp_path / f"exported-{standard}", standard=standard)
        assert f"Note: {model.note}." in (folder / "README.md").read_text(encoding="utf-8")
        assert "v_head" not in "".join(load_file(folder / "model.safetensors"))


def test_ignored_tensors_of_a_family_are_named(tiny_llama, tmp_path):
    """transformers drops tensors with names that contain "mtp" from an ernie4_5_moe."""
    tiny("ernie4_5_moe").save_pretrained(tmp_path)
    copy_tokenizer(tiny_llama, tmp_path)
    file = tmp_path / "model.safetensors"
    ignored_tensor = {"model.mtp_block.0.mlp.up_proj.weight": torch.ones(4)}
    save_file(load_file(file) | ignored_tensor, file, metadata={"format": "pt"})
    assert "model.mtp_block (1)" in lrcore.load(str(tmp_path)).note


def test_unread_tensor_of_a_checkpoint_raises(with_tensors, story_file, offload, tmp_path):
    model = lrcore.load(str(with_tensors({})))
    recipe = lrcore.Recipe(data=str(story_file), samples=2, seq_len=16, method="svd", ratio=0.2)
    saved = lrcore.save(lrcore.compress(model, recipe), tmp_path / "saved")
    file = saved / "model.safetensors"
    unread_bias = {f"{ATTENTION}.q_proj.bias": torch.ones(32)}
    save_file(load_file(file) | unread_bias, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"q_proj\.bias"):
        lrcore.load(str(saved), offload=offload)
