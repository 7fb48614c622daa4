"""Bad input by class, through the command line: one sentence, exit code 2, nothing written.

Each case of a table is a model folder, a text, a recipe or a command line with one thing wrong.
"""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import lrcore
from lrcore.data import files, tokens

WEIGHTS, LARGE = "model.safetensors", 10**12


# --- models ---


def cut(size: int) -> Callable[[Path], None]:
    """The weights end after so many bytes; negative: so many before their end."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:size])

    return damage


def header(change: Callable[[dict], object], claim: int | None = None) -> Callable[[Path], None]:
    """The header of the weights is changed, or its length claimed to be another."""

    def damage(folder: Path) -> None:
        whole = (folder / WEIGHTS).read_bytes()
        length = struct.unpack("<Q", whole[:8])[0]
        values = json.loads(whole[8 : 8 + length])
        changed = change(values)
        text = json.dumps(values if changed is None else changed).encode()
        size = struct.pack("<Q", len(text) if claim is None else claim)
        (folder / WEIGHTS).write_bytes(size + text + whole[8 + length :])

    return damage


def first(values: dict) -> dict:
    """What the header says of one tensor."""
    return values["model.layers.0.self_attn.q_proj.weight"]


def tensors(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """The tensors are others; the file is whole."""

    def damage(folder: Path) -> None:
        state = load_file(folder / WEIGHTS)
        change(state)
        save_file(state, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def fill(name: str, value: float) -> Callable[[Path], None]:
    return tensors(lambda state: state[name].view(-1)[:1].fill_(value))


def config(**fields: object) -> Callable[[Path], None]:
    """Fields of config.json are others; None: they are missing."""

    def damage(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | fields
        kept = {name: value for name, value in values.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return damage


def text(name: str, content: str | bytes) -> Callable[[Path], None]:
    """A file of the folder holds something else."""

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
    """An index in the place of the one file, whose weight_map is this."""

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
    """The tokenizer gives tokens that the embedding has no row for."""
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
    # lists as long are made of these before any weight is looked at
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
def test_models(name, refused, quick, tiny_llama, tmp_path):
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
def test_checkpoints(name, refused, compressed, tiny_llama, tmp_path):
    folder = shutil.copytree(compressed, tmp_path / "model")
    if name == "weights of the dense model":
        shutil.copyfile(tiny_llama / WEIGHTS, folder / WEIGHTS)
    CHECKPOINTS[name](folder)
    refused("quantise", folder, tmp_path / "out", "--group", 8)


# --- texts ---

WORDS = "Once upon a time there was a girl. " * 20
TEXTS: dict[str, tuple[str, str | bytes]] = {
    "empty": (".txt", ""),
    "blank": (".txt", " \n\t\n"),
    "too short": (".txt", "Once"),
    "binary": (".txt", bytes(range(256)) * 4),
    "UTF-16": (".txt", WORDS.encode("utf-16")),
    "Latin-1": (".txt", (WORDS + "é").encode("latin-1")),
    "UTF-8 and Latin-1": (".txt", WORDS.encode() + "ä".encode("latin-1")),
    "cut within a character": (".txt", (WORDS + "€").encode()[:-1]),
    "no known extension": (".csv", WORDS),
    "compressed": (".txt.gz", WORDS),
    "JSON: empty": (".json", ""),
    "JSON: cut short": (".json", '[{"text": "a'),
    "JSON: an object": (".json", json.dumps({"text": WORDS})),
    "JSON: no rows": (".json", "[]"),
    "JSON: null": (".json", "null"),
    "JSON: lists of lists": (".json", json.dumps([[WORDS]])),
    "JSON: numbers": (".json", "[1, 2]"),
    "JSON: rows of null": (".json", "[null]"),
    "JSON: mixed rows": (".json", json.dumps([WORDS, {"text": WORDS}])),
    "JSON: nested objects": (".json", json.dumps([{"text": {"text": WORDS}}])),
    "JSON: nested too deep": (".json", "[" * 100_000 + "]" * 100_000),
    "JSON: the same key twice": (".json", '[{"text": "%s", "text": 5}]' % WORDS),  # noqa: UP031
    "JSON: a number of 5,000 digits": (".json", "[" + "1" * 5000 + "]"),
    "JSON: no field is text": (".json", '[{"a": 1, "b": 2}]'),
    "JSON: two fields are text": (".json", '[{"a": "x", "b": "y"}]'),
    "JSON: half a surrogate": (".json", json.dumps([{"text": "\ud800" * 100}])),
    "JSON: not UTF-8": (".json", b'["\xff"]'),
    "JSON lines: cut short": (".jsonl", '{"text": "a"}\n{"te'),
    "JSON lines: rows of other fields": (".jsonl", '{"text": "a"}\n{"words": "b"}'),
    "JSON lines: a list": (".jsonl", '["a"]'),
    "JSON lines: text is a number": (".jsonl", '{"text": 5}'),
    "JSON lines: blank": (".jsonl", "\n\n"),
    "JSON lines: nested too deep": (".jsonl", "[" * 100_000),
    "parquet: a text": (".parquet", WORDS),
    "parquet: cut short": (".parquet", b"PAR1" + b"\0" * 50),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name, refused, tiny_llama, tmp_path):
    ending, content = TEXTS[name]
    file = tmp_path / f"text{ending}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    rest = ["--samples", 2, "--seq-len", 16]
    refused("compress", tiny_llama, "--data", file, "--out", tmp_path / "out", *rest)


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".json", ".parquet"])
def test_a_line_of_a_gigabyte_is_not_read_where_its_tokens_do_not_fit(
    ending, refused, tiny_llama, tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "free_memory", lambda: (2 if ending == ".parquet" else 16) * 10**9)
    monkeypatch.setitem(files.READERS, ending, lambda _: pytest.fail("it was read"))
    file = tmp_path / f"text{ending}"
    with file.open("wb") as made:
        made.truncate(2**30)
    said = refused("evaluate", tiny_llama, "--data", file, "--seq-len", 16)
    assert "are free" in said


def test_a_text_whose_tokens_do_not_fit_is_not_tokenised(
    refused, tiny_llama, tmp_path, monkeypatch
):
    monkeypatch.setattr(tokens, "free_memory", lambda: 10**7)
    file = tmp_path / "text.txt"
    file.write_text("Once " * 20_000)
    said = refused("evaluate", tiny_llama, "--data", file, "--seq-len", 16)
    assert "100,000 characters take 13.0 MB" in said


@pytest.mark.parametrize("target", ["nothing", "folder", "itself"])
def test_texts_that_are_links(target, refused, tiny_llama, tmp_path):
    (tmp_path / "folder").mkdir()
    file = tmp_path / "text.txt"
    file.symlink_to("text.txt" if target == "itself" else target)
    refused("evaluate", tiny_llama, "--data", file, "--seq-len", 16)


# --- recipes ---

FIELDS: dict[str, tuple] = {
    "model": (5, None, "", [], "a" * 5000, "no\0thing", "demo-lama"),
    "revision": (5, [], "main"),
    "dtype": ("int8", 5, None, []),
    "device": ("gpu", 5, None, "cuda:99", "meta"),
    "offload": ("yes", 1, None),
    "data": (5, None, "", [], "a" * 5000, "no\0thing", "storys"),
    "samples": (0, -1, 1.5, "8", None, True, LARGE),
    "seq_len": (0, 1, -5, "16", None, LARGE),
    "sampling": ("last", 5, None),
    "seed": (-1, 1.5, "0", None, 2**70),
    "calibration": ("both", 5),
    "refit": ("maybe", 5, True),
    "method": ("a4", 5, None, []),
    "policy": ("fair", 5, None, []),
    "ratio": (0, 1, -0.1, 1.5, "0.2", None, True, [0.2], float("nan"), float("inf"), 0.999),
    "budget": ("money", 5, None),
    "temperature": (0, -1, "warm", float("nan"), float("inf"), True, []),
    "rounding": ("up", 5),
    "multiple": (0, -1, 1.5, "8", LARGE),
    "component_ratios": (5, [], {"qk": 2}, {"qk": "x"}, {"zz": 0.1}, {5: 0.1}, {"qk": None}),
    "options": (5, [1], {"nothing": 1}, {"scores": "x"}, {"scores": None}, {5: 5}),
    "policy_options": (5, [1], {"nothing": 1}, {5: 5}),
    "overrides": (5, [1], {"0.mlp": 0}, {"0.mlp": LARGE}, {"99.mlp": 4}, {"mlp": 4}, {5: 5}),
    "target": ("lama.cpp", 5, None, "", True, [], {"name": "vllm"}),
    "nothing": (1,),
    "methd": ("a3",),
}
RECIPES = [(name, value) for name, values in FIELDS.items() for value in values]


def test_every_field_of_a_recipe_has_bad_values():
    assert lrcore.Recipe.__dataclass_fields__.keys() - FIELDS.keys() == set()


@pytest.mark.parametrize(("name", "value"), RECIPES, ids=lambda value: repr(value)[:20])
def test_recipes(name, value, refused, tiny_llama, story_file, tmp_path):
    good = {"model": str(tiny_llama), "data": str(story_file), "samples": 2, "seq_len": 16}
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(good | {name: value}))
    refused("compress", "--recipe", file, "--out", tmp_path / "out")


FILES = {
    "a list": "[1, 2]",
    "a text": "just words",
    "a number": "5",
    "cut short": '{"model": "demo',
    "no YAML": "a: [b\n",
    "binary": b"\x00\xff\xfe" * 9,
    "Latin-1": "model: é".encode("latin-1"),
    "nested too deep": "[" * 5_000,
    "an object of Python": "model: !!python/object/apply:os.getcwd []",
    "the same field twice": "ratio: 0.1\nratio: 0.9\n",
    "keys that are lists": "? [a, b]\n: 5\n",
}


@pytest.mark.parametrize("name", FILES)
def test_recipe_files(name, refused, tmp_path):
    content = FILES[name]
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused("compress", "--recipe", file, "--out", tmp_path / "out")
    refused("sweep", file, "--out", tmp_path / "sweep")


SWEEPS = (
    {"methods": ["a4"]},
    {"methods": 5},
    {"methods": [None]},
    {"ratios": [2]},
    {"ratios": ["much"]},
    {"policies": [[]]},
    {"evaluation": []},
    {"evaluation": 5},
    {"evaluation": {"dta": "stories"}},
    {"evaluation": {"protocol": "mine"}},
    {"evaluation": {"data": 5}},
    {"evaluation": {"samples": -1}},
    {"evaluation": {"seq_len": "long"}},
    {"speed": "fast"},
)


@pytest.mark.parametrize("fields", SWEEPS, ids=str)
def test_sweeps(fields, refused, tiny_llama, story_file, tmp_path):
    good = {"model": str(tiny_llama), "data": str(story_file), "samples": 2, "seq_len": 16}
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(good | fields))
    refused("sweep", file, "--out", tmp_path / "sweep")


# --- flags ---

FLAGS = {
    "evaluate": (
        *(["--samples", one] for one in ("0", "-1", "x")),
        *(["--seq-len", one] for one in ("0", "1", "-5", str(LARGE))),
        *(["--batch", one] for one in ("0", "-1", "x")),
        *(["--protocol", "strided", "--stride", one] for one in ("0", "-1", "99999")),
        ["--protocol", "mine"],
        ["--sampling", "last"],
        ["--sampling", "random", "--seed", "-1"],
        ["--data", "storys"],
        ["--dtype", "int8"],
        ["--device", "gpu"],
        ["--revision", "main"],
        ["--nothing"],
        ["--samples"],
        ["more"],
    ),
    "spectra": (
        ["--threshold", "0"],
        ["--threshold", "2"],
        ["--threshold", "nan"],
    ),
    "allocate": (
        ["--override", "0.mlp=x"],
        ["--override", "0.mlp"],
        ["--component-ratio", "qk"],
        ["--component-ratio", "qk=nan"],
        ["--option", "scores"],
        ["--policy-option", "x=1"],
        ["--temperature", "nan"],
        ["--samples", str(LARGE)],
        ["--recipe", "/no/recipe.yaml"],
    ),
    "generate": (
        [],
        ["--prompt", ""],
        *(["--prompt", "Once", "--max-new-tokens", one] for one in ("0", "-1")),
        *(["--prompt", "Once", "--temperature", one] for one in ("-1", "nan")),
        *(["--prompt", "Once", "--temperature", "1", "--top-p", one] for one in ("0", "2", "nan")),
    ),
    "tasks": (
        ["--items", "0"],
        ["--items", "-1"],
        ["--task", "nothing"],
        ["--task", "/no/task.jsonl"],
        ["--batch", "0"],
    ),
    "cost": (["--context", "0"], ["--context", "-1"], ["--context", str(LARGE)]),
    "compare": ([], ["--batch", "2"]),
    "answers": (["--prompts", "/no/prompts.txt"], []),
    "quantise": (
        *(["OUT", "--bits", one] for one in ("5", "0", "x")),
        *(["OUT", "--group", one] for one in ("0", "-1", "7")),
        [],
    ),
    "shorten": (
        *(["OUT", "--layers", one] for one in ("0", "-1", "3", "99")),
        ["OUT", "--layers", "1", "--by", "luck"],
        ["OUT"],
    ),
    "slice": (
        *(["OUT", "--ratio", one] for one in ("0", "1", "nan", "-1", "0.99")),
        ["OUT", "--rotations", "some"],
        *(["OUT", "--multiple", one] for one in ("0", "-1", "99")),
    ),
    "heal": (
        ["--out", "OUT"],
        ["--out", "OUT", "--steps", "0"],
        ["--out", "OUT", "--rotary-channel", "3"],
    ),
    "export": (["OUT", "--stock", "--result", "/no/result.json"], []),
    "runs": (["show", "nobody"], ["nothing"], ["--folder"]),
    "cache": (["--limit", "much"], ["--limit", "-1GB"], ["--clear", "--limit", "1GB"]),
}
COMMANDS = [(command, flags) for command, rows in FLAGS.items() for flags in rows]
OF_TEXT = ("evaluate", "spectra", "allocate", "shorten", "slice")


@pytest.mark.parametrize(("command", "flags"), COMMANDS, ids=str)
def test_flags(command, flags, refused, tiny_llama, quick, tmp_path, monkeypatch, story_file):
    monkeypatch.setenv("LRCORE_RUNS", str(story_file.parent / "runs"))
    model = [] if command in ("runs", "cache") else [tiny_llama]
    own = [tmp_path / "out" if one == "OUT" else one for one in flags]
    refused(command, *model, *(quick if command in OF_TEXT else []), *own)


HEALINGS = (
    *(["--samples", one] for one in ("0", "-1")),
    *(["--seq-len", one] for one in ("1", "0", str(LARGE))),
    *(["--lr", one] for one in ("0", "-1", "nan", "inf")),
    *(["--beta", one] for one in ("-1", "nan", "inf")),
    *(["--temperature", one] for one in ("0", "nan", "inf")),
    *(["--batch", one] for one in ("0", "-3")),
    ["--train", "some"],
    ["--test-samples", "-1"],
    ["--data", "storys"],
    ["--teacher", "/no/teacher"],
    ["--seed", "-1"],
)


@pytest.mark.parametrize("flags", HEALINGS, ids=str)
def test_healings(flags, refused, compressed, tmp_path):
    good = {"--samples": 4, "--seq-len": 16, "--steps": 2, "--batch": 2, "--test-samples": 0}
    given = good | {flags[0]: flags[1]}
    refused(
        "heal", compressed, "--out", tmp_path / "out", *(x for pair in given.items() for x in pair)
    )


@pytest.mark.parametrize("place", ["file", "folder", "below a file"])
def test_places_to_write_to(place, refused, tiny_llama, quick, tmp_path):
    (tmp_path / "file").write_text("diary")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "diary").touch()
    out = tmp_path / ("file/out" if place == "below a file" else place)
    refused("compress", tiny_llama, "--out", out, *quick)
