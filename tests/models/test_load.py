"""Loading of models, and the error message of each problem."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import CONFIGS, tiny

from lrcore.models import hub
from lrcore.models.config import auto_class, read_config
from lrcore.models.load import empty_network, load_model
from lrcore.system.errors import InputError


@pytest.fixture
def copied(tiny_llama, tmp_path):
    """Return a copy of the tiny Llama that a test may damage."""
    return shutil.copytree(tiny_llama, tmp_path / "model")


def edit_weights(folder, change):
    """Apply `change` to the tensors in the folder."""
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def check_refused(name, *words, **options):
    """Check that the message of the InputError is a single line with all words; return it."""
    with pytest.raises(InputError) as caught:
        load_model(str(name), **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize("family", ["tiny_llama", "tiny_llama_bias", "tiny_opt"])
def test_loaded_folder_is_ready_to_run(family, request):
    folder = request.getfixturevalue(family)
    model = load_model(str(folder))
    assert not model.network.training
    assert not any(parameter.requires_grad for parameter in model.network.parameters())
    assert (model.dtype, model.device.type, model.context) == (
        "float32",
        "cpu",
        128,
    ) or torch.cuda.is_available()
    assert model.size.parameters == sum(p.numel() for p in model.network.parameters())
    assert model.folder == folder
    assert model.history == ()


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_buffers_outside_the_files_equal_those_of_transformers(family, tmp_path):
    """Buffers of an empty network equal those that from_pretrained computes in float32."""
    tiny(family).save_pretrained(tmp_path)
    config = read_config(tmp_path)
    for dtype in (torch.bfloat16, torch.float64):
        theirs = auto_class(config).from_pretrained(tmp_path, dtype=dtype)
        expected = dict(theirs.named_buffers())
        ours = dict(empty_network(config, dtype).named_buffers())
        assert ours.keys() == expected.keys()
        for name in ours.keys() - theirs.state_dict().keys():
            assert torch.equal(ours[name], expected[name]), (name, dtype)


def test_dtype_is_the_requested_or_the_stored_one(tiny_llama):
    assert (
        load_model(str(tiny_llama), dtype="bfloat16").network.lm_head.weight.dtype == torch.bfloat16
    )
    assert load_model(str(tiny_llama), dtype="auto").dtype == "float32"


def test_demo_model_is_loaded_by_name(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "ASSETS", tmp_path)
    check_refused("demo-llama", "demo-llama", "complete clone")
    shutil.copytree(tiny_llama, tmp_path / "demo-llama")
    assert load_model("demo-llama").name == "demo-llama"


def test_sharded_weights_load_and_a_missing_shard_raises(copied):
    state = load_file(copied / "model.safetensors")
    names = sorted(state)
    shards = {
        "model-00001-of-00002.safetensors": names[:5],
        "model-00002-of-00002.safetensors": names[5:],
    }
    for file, members in shards.items():
        save_file({name: state[name] for name in members}, copied / file, metadata={"format": "pt"})
    index = {
        "metadata": {},
        "weight_map": {name: file for file, members in shards.items() for name in members},
    }
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    (copied / "model.safetensors").unlink()
    loaded = load_model(str(copied)).network.state_dict()
    assert all(torch.equal(loaded[name], state[name]) for name in names)
    (copied / "model-00002-of-00002.safetensors").unlink()
    check_refused(copied, "model-00002-of-00002.safetensors", "interrupted")


def test_fingerprint_depends_on_contents_and_not_on_paths(copied, tiny_llama):
    assert load_model(str(copied)).fingerprint == load_model(str(tiny_llama)).fingerprint
    edit_weights(copied, lambda state: state["model.norm.weight"].add_(1e-3))
    assert load_model(str(copied)).fingerprint != load_model(str(tiny_llama)).fingerprint


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("demo-lama", "Did you mean 'demo-llama'?"),
        ("/no/such/folder", "folder '/no/such/folder' does not exist"),
        ("./neither", "folder './neither' does not exist"),
        ("a/b/c", "folder 'a/b/c' does not exist"),
        ("two words", "neither a folder nor a valid hub id"),
        ("", "name is empty"),
        ("some/model", "HF_HUB_OFFLINE"),
        pytest.param("x" * 300, "too long for the name", id="long"),
    ],
)
def test_unknown_names_raise(name, word):
    check_refused(name, word)


def test_revision_of_a_folder_and_file_as_folder_raise(tiny_llama):
    check_refused(tiny_llama, "revision", revision="main")
    check_refused(tiny_llama / "config.json", "is a file")


def test_missing_files_raise(copied, tmp_path):
    (copied / "model.safetensors").rename(tmp_path / "kept")
    check_refused(copied, "has no weights")
    (copied / "pytorch_model.bin").touch()
    check_refused(copied, "pytorch_model.bin", "Convert it")
    (tmp_path / "kept").rename(copied / "model.safetensors")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (copied / file).rename(tmp_path / file)
    check_refused(copied, "has no tokenizer files")
    (copied / "tokenizer.json").write_text("{")
    check_refused(copied, "cannot be read")
    (copied / "config.json").unlink()
    check_refused(copied, "has no config.json")


def test_damaged_weight_files_raise(copied):
    file = copied / "model.safetensors"
    content = file.read_bytes()
    for damaged in (
        content[: len(content) // 2],
        content[:-1],
        content[:5],
        b"",
        b"<html>not found</html>",
    ):
        file.write_bytes(damaged)
        check_refused(
            copied, "model.safetensors", "probably interrupted", f"{len(damaged):,} bytes"
        )


def test_missing_and_mismatched_tensors_raise(copied):
    name = "model.layers.1.mlp.down_proj.weight"
    edit_weights(copied, lambda state: state.update({name: state[name][:, :-1].contiguous()}))
    check_refused(copied, name, "[32, 47]", "[32, 48]")
    edit_weights(copied, lambda state: state.pop(name))
    check_refused(copied, name, "lacks 1")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_raise(copied, value):
    edit_weights(
        copied,
        lambda state: state["model.layers.2.self_attn.k_proj.weight"].view(-1)[7].fill_(value),
    )
    check_refused(copied, "model.layers.2.self_attn.k_proj.weight", "1 of 512", "NaN")


def test_weights_too_large_for_float16_raise(copied):
    edit_weights(copied, lambda state: state["model.norm.weight"].fill_(1e6))
    assert load_model(str(copied)).dtype == "float32"
    check_refused(copied, "Try dtype float32", dtype="float16")


def test_unusable_configs_raise(copied):
    config = json.loads((copied / "config.json").read_text())
    for change, word in [
        ({"model_type": "t5"}, "Supported: llama, "),
        ({"hidden_size": "many"}, "not a valid llama config"),
    ]:
        (copied / "config.json").write_text(json.dumps(config | change))
        check_refused(copied, word)
    (copied / "config.json").write_text("{")
    check_refused(copied, "config.json", "JSON")


def test_code_of_a_model_is_not_run(copied, tmp_path):
    executed = tmp_path / "ran"
    (copied / "modeling.py").write_text(f"open({str(executed)!r}, 'w')\nclass Model: pass\n")
    config = json.loads((copied / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "modeling.Model", "AutoModelForCausalLM": "modeling.Model"}
    (copied / "config.json").write_text(json.dumps(config))
    load_model(str(copied))
    assert not executed.exists()


def test_invalid_devices_and_dtypes_raise(tiny_llama):
    check_refused(tiny_llama, "Unknown device 'gpu0'", device="gpu0")
    check_refused(tiny_llama, "Did you mean 'float16'?", dtype="flaot16")
    check_refused(tiny_llama, "cuda:99", device="cuda:99")
    check_refused(tiny_llama, "finds no Apple GPU", device="mps")


def test_loading_prints_nothing(tiny_llama, capfd):
    load_model(str(tiny_llama))
    assert capfd.readouterr() == ("", "")
