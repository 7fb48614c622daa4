"""Checkpoints that are restored bit for bit, and folders that are never incomplete."""

import csv
import json
import os

import pytest
import torch
from safetensors import safe_open
from tiny_models import copy_tokenizer, tiny

import lrcore
from lrcore.checkpoints.checkpoint import load_checkpoint, save

FAMILIES = ("tiny_llama", "tiny_llama_bias", "tiny_opt")
METHODS = ("svd", "a3", "modegpt")  # factored matrices, narrowed heads, selected pairs


@torch.inference_mode()
def logits(model):
    return model.network(input_ids=torch.arange(3, 43).view(2, 20), use_cache=False).logits


def compressed(folder, data, **changes):
    recipe = lrcore.Recipe(
        model=str(folder), data=str(data), samples=4, seq_len=32, ratio=0.3, **changes
    )
    return lrcore.compress(lrcore.load(str(folder)), recipe)


def assert_round_trip(model, folder):
    """Save and load a model; check logits, size and text, and that no temporary files remain."""
    save(model, folder)
    reloaded = lrcore.load(str(folder))
    assert torch.equal(logits(reloaded), logits(model))
    assert reloaded.size == model.size
    assert lrcore.generate(reloaded, "Once", max_new_tokens=8) == lrcore.generate(
        model, "Once", max_new_tokens=8
    )
    assert not any(parameter.requires_grad for parameter in reloaded.network.parameters())
    assert not any(
        tensor.is_meta for tensor in [*reloaded.network.parameters(), *reloaded.network.buffers()]
    )
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    return reloaded


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_compressed_model_is_restored_bit_for_bit(family, method, request, story_file, tmp_path):
    small = compressed(request.getfixturevalue(family), story_file, method=method)
    reloaded = assert_round_trip(small, tmp_path / "small")
    assert reloaded.provenance == small.provenance


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_dense_model_is_restored_bit_for_bit(family, dtype, request, tmp_path):
    model = lrcore.load(str(request.getfixturevalue(family)), dtype=dtype)
    reloaded = assert_round_trip(model, tmp_path / "dense")
    assert reloaded.dtype == dtype
    assert reloaded.history == ()


def test_a_dense_mlp_in_bfloat16_is_restored_bit_for_bit(tiny_llama, story_file, tmp_path):
    """Falcon adds the bias after rounding the product, a linear module before rounding."""
    tiny("falcon").save_pretrained(tmp_path / "falcon")
    copy_tokenizer(tiny_llama, tmp_path / "falcon")
    model = lrcore.load(str(tmp_path / "falcon"), dtype="bfloat16")
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, budget="kv", ratio=0.5)
    assert_round_trip(lrcore.compress(model, recipe), tmp_path / "saved" / "small")


def test_a_checkpoint_folder_contains_weights_recipe_ranks_and_report(
    tiny_llama, story_file, tmp_path
):
    small = compressed(tiny_llama, story_file, method="a3", policy="softmax", temperature=0.5)
    save(small, tmp_path / "small")
    folder = tmp_path / "small"
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "lrcore.json",
        "recipe.json",
        "ranks.csv",
        "report.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert lrcore.Recipe.read(folder / "recipe.json") == lrcore.Recipe.from_dict(
        small.recipe.to_dict()
    )
    with (folder / "ranks.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [(int(r["layer"]), r["component"], int(r["rank"])) for r in rows] == [
        (r.layer, r.component, r.rank) for r in small.ranks
    ]
    with safe_open(folder / "model.safetensors", "pt") as opened:
        stored = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118 (not a dict)
    assert (
        sum(
            torch.Size(shape).numel()
            for name, shape in stored.items()
            if "rotary_pairs" not in name
        )
        == small.size.parameters
    )
    assert json.loads((folder / "lrcore.json").read_text())["base"] == str(tiny_llama)


def test_tied_weights_are_still_tied_after_loading(tiny_llama, story_file, tmp_path):
    save(compressed(tiny_llama, story_file, method="svd"), tmp_path / "small")
    network = lrcore.load(str(tmp_path / "small")).network
    assert network.lm_head.weight is network.model.embed_tokens.weight


def test_a_checkpoint_is_loaded_in_its_dtype_or_the_requested_one(tiny_llama, story_file, tmp_path):
    save(compressed(tiny_llama, story_file, method="modegpt"), tmp_path / "small")
    half = load_checkpoint(tmp_path / "small", dtype="bfloat16")
    assert half.dtype == "bfloat16"
    dense = lrcore.load(str(tiny_llama), dtype="bfloat16")
    assert (
        half.network.model.rotary_emb.inv_freq.dtype
        == dense.network.model.rotary_emb.inv_freq.dtype
    )
    assert torch.isfinite(logits(half)).all()


def test_a_checkpoint_is_replaced_but_other_folders_are_not(tiny_llama, tmp_path):
    model = lrcore.load(str(tiny_llama))
    (tmp_path / "mine").mkdir()
    save(model, tmp_path / "mine")  # an empty folder may be used
    (tmp_path / "mine" / "old").touch()
    save(model, tmp_path / "mine")
    assert not (tmp_path / "mine" / "old").exists()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "diary.txt").write_text("dear")
    with pytest.raises(lrcore.InputError, match="contains no compressed model"):
        save(model, tmp_path / "theirs")
    assert (tmp_path / "theirs" / "diary.txt").read_text() == "dear"
    save(model, tmp_path / "theirs", overwrite=True)
    assert lrcore.load(str(tmp_path / "theirs")).size == model.size
    with pytest.raises(lrcore.InputError, match="is a file"):
        save(model, tmp_path / "mine" / "config.json")


def test_a_failed_save_preserves_the_previous_checkpoint(tiny_llama, tmp_path, monkeypatch):
    model = lrcore.load(str(tiny_llama))
    save(model, tmp_path / "small")
    before = {path.name: path.read_bytes() for path in (tmp_path / "small").iterdir()}
    monkeypatch.setattr(
        type(model.tokenizer),
        "save_pretrained",
        lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")),
    )
    with pytest.raises(OSError, match="disk full"):
        save(model, tmp_path / "small")
    assert {path.name: path.read_bytes() for path in (tmp_path / "small").iterdir()} == before
    assert os.listdir(tmp_path) == ["small"]


def test_damaged_checkpoints_are_reported(tiny_llama, story_file, tmp_path):
    folder = tmp_path / "small"
    save(compressed(tiny_llama, story_file, method="svd"), folder)
    described = json.loads((folder / "lrcore.json").read_text())
    (folder / "lrcore.json").write_text(json.dumps(described | {"format": 99}))
    with pytest.raises(lrcore.InputError, match="format 99"):
        lrcore.load(str(folder))
    described["structure"]["model.layers.0"]["projections"]["self_attn.q_proj"]["rank"] += 1
    (folder / "lrcore.json").write_text(json.dumps(described))
    with pytest.raises(lrcore.InputError, match="do not match"):
        lrcore.load(str(folder))
    del described["structure"]
    (folder / "lrcore.json").write_text(json.dumps(described))
    with pytest.raises(lrcore.InputError, match="structure"):
        lrcore.load(str(folder))
    (folder / "lrcore.json").write_text("{")
    with pytest.raises(lrcore.InputError, match="JSON"):
        lrcore.load(str(folder))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(lrcore.InputError, match=r"lrcore\.json|interrupted"):
        lrcore.load(str(folder))
