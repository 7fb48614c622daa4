"""Offloaded layers: equal results, a single layer in memory, and no leftover files."""

import gc
import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import lrcore
from lrcore.checkpoints.export import uneven_sizes
from lrcore.models.architectures import ARCHITECTURES, decoder_layers
from lrcore.models.layers import clone, read_layer
from lrcore.models.offload import named_tensors, present
from lrcore.system.errors import InputError
from lrcore.system.files import OFFLOADED, cache_folder
from lrcore.system.tensor_files import StoredTensor
from tests.tiny_models import tiny

VARIED = {
    "svd": {},
    "svd_llm": {"calibration_mode": "sequential"},
    "compot": {},
    "a3": {},
    "modegpt": {},
    "fused": {},
    "latentllm": {"options": {"sparse": 0.1}},
    "care": {},
    "a3 probed": {"policy": "probed"},
    "svd mix": {"policy": "mix"},
}


@pytest.fixture(scope="module")
def sharded(tiny_llama_bias, tmp_path_factory) -> Path:
    """Save the tiny Llama with biases and an untied head, in bfloat16, in several files."""
    return reshard(tiny_llama_bias, tmp_path_factory.mktemp("sharded"), torch.bfloat16)


def reshard(source: Path, folder: Path, dtype: torch.dtype) -> Path:
    AutoModelForCausalLM.from_pretrained(source, dtype=dtype).save_pretrained(
        folder, max_shard_size="10KB"
    )
    add_tokenizer(source, folder)
    assert len(list(folder.glob("*.safetensors"))) > 3
    return folder


def add_tokenizer(source: Path, folder: Path) -> None:
    for file in source.glob("token*"):
        shutil.copy(file, folder)


def recipe(story_file: Path, name: str, **options) -> lrcore.Recipe:
    return lrcore.Recipe(
        data=str(story_file),
        samples=6,
        seq_len=16,
        ratio=0.3,
        method=name.partition(" ")[0],
        **options,
    )


def in_memory(network) -> list[int]:
    """Return the layers with tensors in memory."""
    return [
        i
        for i, layer in enumerate(decoder_layers(network))
        if any(not t.is_meta for t in named_tensors(layer).values())
    ]


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of a checkpoint, except for durations."""
    result = {path.name: path.read_bytes() for path in folder.iterdir()}
    report = json.loads(result.pop("report.json"))
    for step in report["history"]:
        step.pop("seconds", None)
    return result | {"report": json.dumps(report)}


# Methods run in float32 only; the conversion of other dtypes does not depend on the method.
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in VARIED), ("svd_llm", "bfloat16")]
)
def test_checkpoint_is_byte_identical_with_and_without_offload(
    name, dtype, sharded, story_file, tmp_path, monkeypatch
):
    requested, made = recipe(story_file, name, **VARIED[name]), {}
    for offload in (False, True):
        monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / f"cache-{offload}"))
        model = lrcore.load(str(sharded), dtype=dtype, offload=offload)
        assert model.offloaded == offload
        small = lrcore.compress(model, requested)
        assert (
            in_memory(small.network) == in_memory(model.network) == ([] if offload else [0, 1, 2])
        )
        made[offload] = files(lrcore.save(small, tmp_path / str(offload)))
    assert made[True] == made[False]
    reloaded = lrcore.load(str(tmp_path / "True"), offload=True)
    tokens = torch.arange(3, 40).unsqueeze(0)
    with torch.no_grad():
        logits = [
            model.network(tokens).logits
            for model in (small, reloaded, lrcore.load(str(tmp_path / "False")))
        ]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


RENAMED = ("exaone", "olmo_hybrid", "nemotron_h", "lfm3")
REFUSED = [name for name, row in ARCHITECTURES.items() if row.experts or name in RENAMED]


@pytest.mark.parametrize("family", [name for name in ARCHITECTURES if name not in REFUSED])
def test_every_family_runs_offloaded(family, tmp_path, tiny_llama):
    tiny(family).save_pretrained(tmp_path, max_shard_size="10KB")
    add_tokenizer(tiny_llama, tmp_path)
    full_ranks, offloaded = (
        lrcore.load(str(tmp_path), dtype="bfloat16", offload=offload) for offload in (False, True)
    )
    tokens = torch.arange(3, 23).view(2, 10)
    with torch.no_grad():
        assert torch.equal(full_ranks.network(tokens).logits, offloaded.network(tokens).logits)
    assert not in_memory(offloaded.network)
    assert offloaded.size == full_ranks.size
    assert offloaded.fingerprint == full_ranks.fingerprint
    assert offloaded.dtype == "bfloat16"


@pytest.mark.parametrize("family", REFUSED)
def test_joined_or_renamed_weights_raise(family, tmp_path, tiny_llama):
    tiny(family).save_pretrained(tmp_path)
    add_tokenizer(tiny_llama, tmp_path)
    with pytest.raises(InputError, match="without offload"):
        lrcore.load(str(tmp_path), offload=True)


def test_only_one_layer_at_a_time_is_in_memory(sharded, story_file, monkeypatch):
    seen = []
    model = lrcore.load(str(sharded), offload=True)
    for layer in decoder_layers(model.network):
        layer.register_forward_pre_hook(lambda *_: seen.append(in_memory(model.network)))
    lrcore.evaluate(model, str(story_file), samples=2, seq_len=16)
    assert seen[:3] == [[0], [1], [2]]
    assert not in_memory(model.network)
    assert model.network.get_input_embeddings().weight.device.type == "cpu"


def test_layers_are_released_after_an_error(sharded):
    model = lrcore.load(str(sharded), offload=True)
    with pytest.raises(ZeroDivisionError), present(decoder_layers(model.network)[1]):
        raise ZeroDivisionError
    handle = decoder_layers(model.network)[2].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.network(torch.arange(3, 9).unsqueeze(0))
    handle.remove()
    assert not in_memory(model.network)


def test_replaced_layers_of_a_clone_do_not_change_the_original(sharded, story_file):
    model = lrcore.load(str(sharded), offload=True)
    before = read_layer(model.network, 0)
    small = lrcore.compress(model, recipe(story_file, "a3"))
    assert read_layer(small.network, 0).attention.qk_size < before.attention.qk_size
    assert torch.equal(
        read_layer(clone(model.network), 0).attention.q.weight, before.attention.q.weight
    )
    copied = clone(small.network)
    del small
    gc.collect()
    assert read_layer(copied, 0).attention.qk_size < before.attention.qk_size


def test_no_files_remain_after_deletion(sharded, story_file, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    model = lrcore.load(str(sharded), offload=True)
    every_layer = {f"{i}.mlp": 32 for i in range(3)}
    small = lrcore.compress(
        model, recipe(story_file, "a3", policy="probed", rank_overrides=every_layer)
    )
    assert len(list((cache_folder() / OFFLOADED).rglob("*.safetensors"))) == 3
    del small
    gc.collect()
    assert not list((cache_folder() / OFFLOADED).rglob("*.safetensors"))


def test_saving_reads_each_stored_tensor_once(sharded, tmp_path, monkeypatch):
    model, read, plain = lrcore.load(str(sharded), offload=True), [], StoredTensor.map

    def counted(stored):
        read.append(stored.name)
        return plain(stored)

    monkeypatch.setattr(StoredTensor, "map", counted)
    lrcore.save(model, tmp_path / "saved")
    assert read
    assert len(read) == len(set(read))


def test_model_with_missing_weights_raises(sharded, tmp_path):
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    config = json.loads((sharded / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(InputError, match="lacks 16 of the weights"):
        lrcore.load(str(tmp_path), offload=True)


@pytest.mark.parametrize("standard", [False, True])
def test_exports_are_byte_identical_with_and_without_offload(
    standard, sharded, story_file, tmp_path
):
    full_ranks = {"qk": 8, "ov": 8, "mlp": 32}
    requested = recipe(
        story_file,
        "a3",
        rank_overrides={f"{i}.{name}": rank for i in range(3) for name, rank in full_ranks.items()},
    ).with_(ratio=0.1)
    made = []
    for offload in (False, True):
        small = lrcore.compress(
            lrcore.load(str(sharded), dtype="bfloat16", offload=offload), requested
        )
        folder = lrcore.export(
            small, tmp_path / str(offload) / "model", standard=standard, shard="8KB"
        )
        assert not in_memory(small.network) or not offload
        made.append(
            {
                path.name: path.read_bytes()
                for path in folder.iterdir()
                if path.name != "report.json"
            }
        )
    assert made[0] == made[1]
    assert len(made[0]) > 8


def test_sizes_of_layers_are_known_without_reading_them(sharded, story_file, monkeypatch):
    small = lrcore.compress(lrcore.load(str(sharded), offload=True), recipe(story_file, "fused"))
    before = uneven_sizes(
        lrcore.compress(lrcore.load(str(sharded)), recipe(story_file, "fused")).network
    )
    monkeypatch.setattr(StoredTensor, "read", None)
    assert uneven_sizes(small.network) == before != {}


def test_offload_is_set_by_recipe_and_command_line(sharded, story_file, tmp_path, capsys):
    from lrcore.cli import main

    requested = recipe(story_file, "a3", model=str(sharded), offload=True)
    assert lrcore.Recipe.from_dict(requested.to_dict()) == requested
    assert "--offload --data" in requested.command()
    (tmp_path / "recipe.json").write_text(requested.to_json())
    words = shlex.split(requested.command(str(tmp_path / "by-flag")))[3:]
    for case in (
        words,
        [
            "compress",
            "--recipe",
            str(tmp_path / "recipe.json"),
            "--out",
            str(tmp_path / "by-recipe"),
        ],
    ):
        assert main([*case, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["recipe"]["offload"] is True
    assert files(tmp_path / "by-flag") == files(tmp_path / "by-recipe")
    assert (
        main(
            [
                "evaluate",
                str(tmp_path / "by-flag"),
                "--offload",
                "--data",
                str(story_file),
                "--samples",
                "2",
                "--seq-len",
                "16",
            ]
        )
        == 0
    )
    with pytest.raises(InputError, match="true or false"):
        requested.with_(offload="yes")


def test_damaged_checkpoints_raise_the_same_error_offloaded(sharded, story_file, tmp_path):
    folder = lrcore.save(
        lrcore.compress(lrcore.load(str(sharded)), recipe(story_file, "a3")), tmp_path / "small"
    )
    state = load_file(folder / "model.safetensors")
    for change in (
        {"lm_head.weight": torch.full_like(state["lm_head.weight"], torch.nan)},
        {"lm_head.weight": torch.zeros(2, 2)},
    ):
        save_file(state | change, folder / "model.safetensors", metadata={"format": "pt"})
        message = []
        for offload in (False, True):
            with pytest.raises(InputError) as caught:
                lrcore.load(str(folder), offload=offload)
            message.append(str(caught.value).partition("(")[0])
        assert message[0] == message[1]
