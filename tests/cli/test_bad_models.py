"""Invalid model folders and checkpoints on the command line: one error line, exit code 2, nothing
written.

Each case of a table contains one error.
"""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.one_in(3)

WEIGHTS, LARGE = "model.safetensors", 10**12


def cut(size: int) -> Callable[[Path], None]:
    """Truncate the weights after this number of bytes; negative: before their end."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:size])

    return damage


def header(change: Callable[[dict], object], claim: int | None = None) -> Callable[[Path], None]:
    """Change the header of the weights, or claim a wrong length."""

    def damage(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        values = json.loads(content[8 : 8 + length])
        changed = change(values)
        text = json.dumps(values if changed is None else changed).encode()
        size = struct.pack("<Q", len(text) if claim is None else claim)
        (folder / WEIGHTS).write_bytes(size + text + content[8 + length :])

    return damage


def first(values: dict) -> dict:
    """Return the header entry of a tensor."""
    return values["model.layers.0.self_attn.q_proj.weight"]


def tensors(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Change the tensors of a valid file."""

    def damage(folder: Path) -> None:
        state = load_file(folder / WEIGHTS)
        change(state)
        save_file(state, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def fill(name: str, value: float) -> Callable[[Path], None]:
    return tensors(lambda state: state[name].view(-1)[:1].fill_(value))


def config(**fields: object) -> Callable[[Path], None]:
    """Change fields of config.json; None removes a field."""

    def damage(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | fields
        present = {name: value for name, value in values.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(present))

    return damage


def text(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Replace the content of a file."""

    def damage(folder: Path) -> None:
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)

    return damage


def without(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def shards(named: object) -> Callable[[Path], None]:
    """Replace the weights by an index with this weight_map."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder.parent / "elsewhere.safetensors")
        index = {"metadata": {}, "weight_map": named}
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))

    return damage


def link(name: str, target: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return damage


def vocabulary(folder: Path) -> None:
    """Give tokens ids beyond the embedding."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    names = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {name: number + 500 for name, number in names.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NORM, QUERY = "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"
MODELS = {
    **{f"weights cut at {size}": cut(size) for size in (0, 1, 7, 8, 9, 100, 5000, -1, -100)},
    **{
        f"header claims {claim} bytes": header(lambda values: None, claim)
        for claim in (0, 1, 10 * 2**30, 2**63, 2**64 - 1)
    },
    "header is a list": header(lambda values: [values]),
    "header is a number": header(lambda values: 5),
    "header without tensors": header(lambda values: values.clear()),
    "offsets beyond the file": header(lambda values: first(values)["data_offsets"].reverse()),
    "offsets of 10 GB": header(lambda values: first(values).update(data_offsets=[0, 10 * 2**30])),
    "offsets below zero": header(lambda values: first(values).update(data_offsets=[-8, 8])),
    "shape of 10 GB": header(lambda values: first(values).update(shape=[10 * 2**30, 1])),
    "shape that overflows": header(lambda values: first(values).update(shape=[2**40, 2**40])),
    "shape below zero": header(lambda values: first(values).update(shape=[-1, 32])),
    "unknown dtype": header(lambda values: first(values).update(dtype="F99")),
    "dtype of another size": header(lambda values: first(values).update(dtype="F64")),
    "no dtype": header(lambda values: first(values).pop("dtype") and None),
    "NaN in the embedding": fill("model.embed_tokens.weight", float("nan")),
    "NaN in a norm": fill(NORM, float("nan")),
    "infinity in a matrix": fill(QUERY, float("inf")),
    "minus infinity in a matrix": fill(QUERY, float("-inf")),
    "a matrix of integers": tensors(lambda state: state.update({QUERY: state[QUERY].long()})),
    "a matrix of truth values": tensors(lambda state: state.update({QUERY: state[QUERY] > 0})),
    "a matrix of complex numbers": tensors(
        lambda state: state.update({QUERY: state[QUERY].to(torch.complex64)})
    ),
    "a matrix is missing": tensors(lambda state: state.pop(QUERY)),
    "a norm is missing": tensors(lambda state: state.pop(NORM)),
    "the embedding is missing": tensors(lambda state: state.pop("model.embed_tokens.weight")),
    "all is missing": tensors(lambda state: state.clear()),
    "a layer too many": tensors(
        lambda state: state.update(
            {
                name.replace("layers.2", "layers.3"): value.clone()
                for name, value in list(state.items())
                if "layers.2" in name
            }
        )
    ),
    "a matrix of another shape": tensors(
        lambda state: state.update({QUERY: state[QUERY][:-1].clone()})
    ),
    "a matrix turned over": tensors(
        lambda state: state.update({QUERY: state[QUERY][:, :5].clone()})
    ),
    "a vector in place of a matrix": tensors(
        lambda state: state.update({QUERY: state[QUERY].flatten().clone()})
    ),
    "another head beside a tied embedding": tensors(
        lambda state: state.update({HEAD: 2 * state[EMBEDDING]})
    ),
    "a shorter head beside a tied embedding": tensors(
        lambda state: state.update({HEAD: state[EMBEDDING][:-1].clone()})
    ),
    "no head, and none is tied": config(tie_word_embeddings=False),
    "no config": without("config.json"),
    "empty config": text("config.json", ""),
    "config cut short": text("config.json", '{"model_type": "lla'),
    "config is a list": text("config.json", "[]"),
    "config is null": text("config.json", "null"),
    "config is binary": text("config.json", b"\xff\xfe\x00\x01"),
    "config in UTF-16": text("config.json", "{}".encode("utf-16")),
    "config nested too deep": text("config.json", "[" * 100_000),
    "no family": config(model_type=None),
    "family of another name": config(model_type="gpt9"),
    "family is a number": config(model_type=3),
    "family is a list": config(model_type=["llama"]),
    **{
        f"{name} {value!r}": config(**{name: value})
        for name, values in {
            "hidden_size": (0, -1, "32", 3.5, LARGE, []),
            "num_hidden_layers": (0, -1, "three", 10**9),
            "num_attention_heads": (0, -4, 5, 10**9),
            "num_key_value_heads": (0, 3),
            "intermediate_size": (0, -1, LARGE),
            "vocab_size": (0, 10, LARGE),
            "hidden_act": ("nothing", 7),
            "head_dim": (0, -8, 16),
            "tie_word_embeddings": ("maybe", 5),
            "rms_norm_eps": (-1.0, float("nan"), float("inf"), "small", []),
            "max_position_embeddings": (0, -1, "long", 1.5),
            "attention_bias": ("some", 5, True),
            "eos_token_id": ("end", 1.5),
            "dtype": ("float3",),
            "layer_types": (["sideways"] * 3, 5),
            "quantization_config": (5, {"quant_method": "wild"}),
            "pad_token_id": (LARGE,),
            "initializer_range": ("wide",),
        }.items()
        for value in values
    },
    **{
        f"layers have {value!r} for themselves": config(per_layer_config=value)
        for value in (
            {"1": {"intermediate_size": 24}},
            {"1": {"num_key_value_heads": 1}},
            {"9": {"intermediate_size": 24}},
            {"one": {"intermediate_size": 24}},
            {"1": 5},
            [24],
        )
    },
    # transformers would make lists of this length before the weights are checked
    "a billion layers in turns": config(model_type="qwen3", num_hidden_layers=10**9),
    "a billion layers by kind": config(
        model_type="gpt_neo", attention_types=[[["global", "local"], 10**9]]
    ),
    **{
        f"rope with theta {value!r}": config(
            rope_parameters={"rope_type": "default", "rope_theta": value}
        )
        for value in (0, -1.0, float("nan"), float("inf"), "wide", None)
    },
    "rope of an unknown kind": config(rope_scaling={"rope_type": "wild", "factor": 2.0}),
    "no tokenizer": without("tokenizer.json", "tokenizer_config.json"),
    "tokenizer cut short": text("tokenizer.json", '{"version": "1.0", "mod'),
    "tokenizer is empty": text("tokenizer.json", ""),
    "tokenizer is binary": text("tokenizer.json", b"\x00\xff" * 50),
    "tokenizer of nothing": text("tokenizer.json", "{}"),
    "tokenizer larger than the embedding": vocabulary,
    "no weights": without(WEIGHTS),
    "weights only as pickle": lambda folder: (folder / WEIGHTS).rename(folder / "pytorch.bin"),
    "shards that are missing": shards({NORM: "model-00001-of-00002.safetensors"}),
    "shards above the folder": shards({NORM: "../elsewhere.safetensors"}),
    "shards at the root": shards({NORM: "/etc/hostname"}),
    "shards that are numbers": shards({NORM: 5}),
    "shards that are a list": shards([NORM]),
    "shards of nothing": shards({}),
    "index cut short": lambda folder: (
        shards({})(folder),
        (folder / f"{WEIGHTS}.index.json").write_text('{"weight'),
    ),
    "weights are a dangling link": link(WEIGHTS, "/no/weights"),
    "weights are a link to itself": link(WEIGHTS, WEIGHTS),
    "weights are a link to a folder": link(WEIGHTS, "/tmp"),
    "config is a dangling link": link("config.json", "/no/config.json"),
}


@pytest.mark.parametrize("name", MODELS)
def test_invalid_model_folders_are_refused(name, refused, quick, tiny_llama, tmp_path):
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    MODELS[name](folder)
    refused("compress", folder, "--out", tmp_path / "out", *quick)


MARK = "lrcore.json"
CHECKPOINTS = {
    "description cut short": text(MARK, '{"format'),
    "description is a list": text(MARK, "[]"),
    "description of nothing": text(MARK, "{}"),
    "description nested too deep": text(MARK, "[" * 100_000),
    "report cut short": text("report.json", "{"),
    "report is a list": text("report.json", "[1]"),
    "weights cut short": cut(-100),
    "NaN": fill(NORM, float("nan")),
    "a tensor is missing": tensors(lambda state: state.pop(NORM)),
    "weights of the dense model": lambda folder: None,
}


def described(**fields: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        values = json.loads((folder / MARK).read_text()) | fields
        (folder / MARK).write_text(json.dumps(values))

    return damage


CHECKPOINTS |= {
    f"{name} {value!r}": described(**{name: value})
    for name, values in {
        "format": (99, "one", None),
        "dtype": ("float3", 5),
        "structure": (5, {"0": 1}, {"layers": {"zero": []}}),
        "tied": (5, {"a": "b"}),
    }.items()
    for value in values
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_invalid_checkpoints_are_refused(name, refused, compressed, tiny_llama, tmp_path):
    folder = shutil.copytree(compressed, tmp_path / "model")
    if name == "weights of the dense model":
        shutil.copyfile(tiny_llama / WEIGHTS, folder / WEIGHTS)
    CHECKPOINTS[name](folder)
    refused("quantize", folder, tmp_path / "out", "--group", 8)
