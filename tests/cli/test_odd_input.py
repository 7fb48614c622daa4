"""Unusual or hostile input: pipes and devices instead of files, YAML aliases that expand to
gigabytes, non-decimal digits, names that are not text.
"""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import lrcore

pytestmark = pytest.mark.one_in(3)

HUGE = "0x" + "f" * 5000  # more digits than Python converts
DIGITS = "9" * 400  # beyond the range of a float
NO_HOME = "~nobody_is_called_so"
# Eight lines with a last alias that expands to 10^8 words.
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefg", "bcdefgh", strict=True)
)
INSIDE = (
    "[&a [x,x,x,x,x,x,x,x,x,x]"
    + "".join(
        f", &{new} [{','.join([f'*{old}'] * 10)}]"
        for old, new in zip("abcdefg", "bcdefgh", strict=True)
    )
    + "]"
)


# --- recipes ---

FIELDS = (
    *(
        f"{field}: {INSIDE}"
        for field in (
            *("model", "data", "revision", "offload", "samples", "seed", "calibration_mode"),
            *("method", "ratio", "temperature", "options", "rank_overrides", "target"),
        )
    ),
    f"options: {{scores: {INSIDE}}}",
    f"rank_overrides: {{0.mlp: {INSIDE}}}",
    f"component_ratios: {{qk: {INSIDE}}}",
    *(f"{field}: {HUGE}" for field in ("samples", "seed", "ratio", "temperature", "method")),
    *(f"{field}: {DIGITS}" for field in ("samples", "rank_multiple", "temperature")),
    f"rank_overrides: {{0.mlp: {HUGE}}}",
    "method: flap\noptions: {scores: .inf}",
    "rank_overrides: {².mlp: 4}",
    "rank_overrides: {٠.mlp: 4}",
    "rank_overrides: {00.mlp: 4}",
    "rank_overrides: {0.mlp: true}",
    "offload: !!bool maybe",
    "samples: !!int ''",
    "data: !!timestamp today",
    *(f'{field}: "\\ud800"' for field in ("model", "data", "method", "revision", "target")),
    *(f"{field}: {'a' * 5000}" for field in ("ratio", "samples", "temperature", "device")),
    f"component_ratios: {{{'a' * 5000}: 2}}",
    f"options: {{{'a' * 900}: []}}",
    f"rank_overrides: {{{'a' * 900}: 1}}",
    f"model: {NO_HOME}/model",
    f"data: {NO_HOME}/text.txt",
)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field[:24])
def test_unusual_recipe_fields_are_refused(field, refused, tiny_llama, story_file, tmp_path):
    valid = {"model": str(tiny_llama), "data": str(story_file), "samples": 2, "seq_len": 16}
    named = field.partition(":")[0]
    lines = [f"{name}: {json.dumps(value)}" for name, value in valid.items() if name != named]
    file = tmp_path / "recipe.yaml"
    file.write_text("\n".join([*lines, field]), encoding="utf-8")
    refused("compress", "--recipe", file, "--out", tmp_path / "out")


FILES = {
    "aliases of aliases": BOMB,
    "empty": "",
    "a comment": "# model: demo-llama\n",
    "nothing": "~",
    "false": "false",
    "zero": "0",
    "an empty text": "''",
    "an empty list": "[]",
    "itself": "&a [*a]",
    "two documents": "model: demo-llama\n---\nmodel: demo-opt\n",
    "spaces of a megabyte": " " * 2**20 + "model: demo-llama\n",
}


@pytest.mark.parametrize("name", FILES)
def test_unusual_recipe_files_are_refused(name, refused, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(FILES[name])
    refused("compress", "--recipe", file, "--out", tmp_path / "out")
    refused("sweep", file, "--out", tmp_path / "sweep")


SWEEPS = (
    f"methods: {INSIDE}",
    f"ratios: {INSIDE}",
    f"rows: {INSIDE}",
    f"evaluation: {INSIDE}",
    f"tasks: {INSIDE}",
    f"speed: {INSIDE}",
    f"ratios: [{DIGITS}]",
    f"evaluation: {{samples: {DIGITS}}}",
    'methods: ["\\ud800"]',
    "method: modegpt\noptions: {nosuch: 1}\nratios: [0.2]",
    "policy: softmax\npolicy_options: {nosuch: 1}\nratios: [0.2]",
    *(
        f"rows: [{{heal: {{{name}: {value}}}}}]"
        for name in ("lr", "beta", "temperature", "seed")
        for value in ("fast", "null", "{}", DIGITS)
    ),
    "rows: [{sparsify: {pattern: unstructured, kept: half}}]",
    "rows: [{quantise: {group: many}}]",
    f"seeds: [{', '.join(map(str, range(200)))}]\nratios: "
    f"[{', '.join(str(i / 1000) for i in range(1, 200))}]",
    f"rows: [{{compress: {{seed: {list(range(200))}, samples: {list(range(1, 200))}}}}}]",
    f"rows: [[{', '.join([f'{{compress: {{seed: {list(range(10))}}}}}'] * 12)}]]",
)


@pytest.mark.parametrize("field", SWEEPS, ids=lambda field: field[:40])
def test_unusual_sweep_fields_are_refused(field, refused, tiny_llama, story_file, tmp_path):
    valid = {"model": str(tiny_llama), "data": str(story_file), "samples": 2, "seq_len": 16}
    lines = [f"{name}: {json.dumps(value)}" for name, value in valid.items()]
    file = tmp_path / "sweep.yaml"
    file.write_text("\n".join([*lines, field]), encoding="utf-8")
    refused("sweep", file, "--out", tmp_path / "sweep")


# --- paths that are not regular files ---


def pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    working_directory = os.getcwd()
    os.chdir(path.parent)  # the absolute path is too long for a socket
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(working_directory)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


SPECIAL_FILES: dict[str, Callable[[Path], None]] = {
    "pipe": pipe,
    "socket": a_socket,
    "device": endless,
}
MODEL_FILES = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *("generation_config.json", "special_tokens_map.json", "chat_template.jinja"),
)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
@pytest.mark.parametrize("name", MODEL_FILES)
def test_special_files_in_a_model_folder_are_refused(
    name, kind, refused, quick, tiny_llama, tmp_path
):
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    SPECIAL_FILES[kind](folder / name)
    refused("compress", folder, "--out", tmp_path / "out", *quick)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_special_files_instead_of_input_files_are_refused(
    kind, refused, tiny_llama, compressed, tmp_path
):
    def named(name: str) -> Path:
        SPECIAL_FILES[kind](tmp_path / name)
        return tmp_path / name

    refused("evaluate", named("model"), "--seq-len", 16)
    refused("evaluate", named("model.gguf"), "--seq-len", 16)
    for ending in (".txt", ".jsonl", ".json", ".parquet"):
        refused("evaluate", tiny_llama, "--data", named(f"text{ending}"), "--seq-len", 16)
    refused("allocate", "--recipe", named("recipe.yaml"))
    refused("sweep", named("sweep.yaml"), "--out", tmp_path / "out")
    refused("tasks", tiny_llama, "--task", named("task.jsonl"))
    refused("answers", tiny_llama, "--prompts", named("prompts.txt"))
    refused("export", compressed, tmp_path / "out", "--result", named("result.json"))
    refused("runs", "--folder", named("runs"))


MODELS: dict[str, tuple[str, Callable[[dict], object]]] = {
    "a token numbered 10^12": (
        "tokenizer.json",
        lambda values: values["model"]["vocab"].update(a=10**12),
    ),
    "texts filled up to 10^9 tokens": (
        "tokenizer.json",
        lambda values: values.update(
            padding={
                "strategy": {"Fixed": 10**9},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "<pad>",
            }
        ),
    ),
    "a text of a million characters for each": (
        "tokenizer.json",
        lambda values: values.update(
            normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "x" * 10**6}
        ),
    ),
    "bytes of bytes of bytes": (
        "tokenizer.json",
        lambda values: values.update(
            normalizer={"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}
        ),
    ),
    "a billion labels": ("config.json", lambda values: values.update(num_labels=10**9)),
    "a config of text that is none": ("config.json", lambda values: values.update(text_config={})),
    "a config of text that is a number": (
        "config.json",
        lambda values: values.update(text_config=5),
    ),
    "a share that is a text": (
        "config.json",
        lambda values: values.update(partial_rotary_factor="x"),
    ),
    "a family of a long name": ("config.json", lambda values: values.update(model_type="a" * 5000)),
}


@pytest.mark.parametrize("name", MODELS)
def test_unusual_model_folders_are_refused(name, refused, quick, tiny_llama, tmp_path):
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    file, change = MODELS[name]
    values = json.loads((folder / file).read_text())
    change(values)
    (folder / file).write_text(json.dumps(values))
    refused("compress", folder, "--out", tmp_path / "out", *quick)


@pytest.mark.parametrize("flag", ["--csv", "--html"])
def test_output_files_do_not_replace_a_device(
    flag, refused, tiny_llama, story_file, quick, tmp_path
):
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    words = ["answers", tiny_llama, "--prompts", story_file, "--max-new-tokens", 1]
    if flag == "--html":
        words = ["compare", tiny_llama, tiny_llama, *quick]
    refused(*words, flag, device)
    assert device.is_symlink()


def test_an_output_path_that_is_not_text_is_refused_before_any_work(
    refused, tiny_llama, quick, tmp_path
):
    refused("compress", tiny_llama, "--out", f"{tmp_path}/caf\udce9", *quick)
    refused("export", tiny_llama, f"{tmp_path}/caf\udce9.gguf", "--format", "gguf")


# --- texts and questions ---

TEXTS = {
    "JSON lines: the text twice": (".jsonl", b'{"text": "a", "text": "b"}'),
    "JSON: the text twice": (".json", b'[{"text": "a", "text": "b"}]'),
    "JSON: twice within": (".json", b'[{"text": "a", "more": {"a": 1, "a": 1}}]'),
    "a mark of the order of bytes alone": (".txt", b"\xef\xbb\xbf"),
    "UTF-32": (".txt", ("Once upon a time. " * 20).encode("utf-32")),
    "a character in more bytes than it takes": (".txt", b"Once upon " * 20 + b"\xc0\xaf"),
    "JSON of other quotes": (".jsonl", b"{'text': 'a'}"),
    "JSON with comments": (".json", b'// a\n[{"text": "a"}]'),
}


@pytest.mark.parametrize("name", TEXTS)
def test_unusual_texts_are_refused(name, refused, tiny_llama, tmp_path):
    ending, content = TEXTS[name]
    file = tmp_path / f"text{ending}"
    file.write_bytes(content)
    refused("evaluate", tiny_llama, "--data", file, "--seq-len", 16)


DATA = (
    f"0.{'0' * 322}1*stories+0.{'0' * 322}1*python-docs",
    "stories+",
    "*stories",
    "1.2.3*stories+python-docs",
    "caf\udce9.txt",
    f"{NO_HOME}/text.txt",
    "::",
)


@pytest.mark.parametrize("data", DATA, ids=ascii)
def test_unusual_data_names_are_refused(data, refused, tiny_llama):
    refused("evaluate", tiny_llama, "--data", data, "--samples", 2, "--seq-len", 16)


QUESTION = {"question": "Once upon a", "choices": ["time", "dog"], "label": 0}
QUESTIONS = {
    "binary": b"\xff\xfe\x00" * 50,
    "Latin-1": json.dumps(QUESTION).encode() + b'\n{"question": "\xe9"}',
    "half a character": {"question": "\ud800"},
    "a choice of half a character": {"choices": ["\ud800", "b"]},
    "a label of thousands": {"label": 10**400},
    "groups of groups": {"groups": [[[5] * 50] * 50] * 50},
    "an image that is missing": {"image": "bild-ä.png"},
    "an image of a long name": {"image": "a." * 300},
    "an image above": {"image": "../image.png"},
    "an image of a zero byte": {"image": "a\0b"},
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_unusual_task_questions_are_refused(name, refused, tiny_llama, tmp_path):
    question, file = QUESTIONS[name], tmp_path / "task.jsonl"
    file.write_bytes(
        question if isinstance(question, bytes) else json.dumps(QUESTION | question).encode()
    )
    refused("tasks", tiny_llama, "--task", file)


# --- flags and names ---

FLAGS = (
    ["allocate", "MODEL", "--rank-override", "².mlp=4"],
    ["allocate", "MODEL", "--rank-override", "0.mlp=²"],
    ["allocate", "MODEL", "--rank-override", "0.mlp=" + "9" * 5000],
    ["allocate", "MODEL", "--option", "x" * 5000],
    ["allocate", "MODEL", "--component-ratio", "x" * 5000],
    ["allocate", "MODEL", "--what-if", f"{NO_HOME}/config.json"],
    ["allocate", "MODEL", "--what-if", "/dev/zero"],
    ["generate", "MODEL", "--prompt", "caf\udce9"],
    ["answers", "MODEL", "--prompts", f"{NO_HOME}/prompts.txt"],
    ["answers", "MODEL", "--prompts", "BINARY"],
    ["cache", "--limit", f"{DIGITS}GB"],
    ["cache", "--limit", "x" * 5000],
    ["compress", "MODEL", "--out", f"{NO_HOME}/out"],
    ["export", "SMALL", f"{NO_HOME}/out"],
    ["export", "SMALL", f"{NO_HOME}/out.gguf"],
    ["export", f"{NO_HOME}/model", "OUT"],
    ["runs", "add", f"{NO_HOME}/model"],
    ["runs", "rename", "kept", "caf\udce9"],
    ["runs", "add", "SMALL", "--name", "caf\udce9"],
    ["runs", "show", "caf\udce9"],
    ["runs", "tag", "kept", "caf\udce9"],
)


@pytest.mark.parametrize("words", FLAGS, ids=lambda words: ascii(" ".join(words)[:40]))
def test_unusual_flag_values_are_refused(
    words, refused, tiny_llama, compressed, tmp_path, tmp_path_factory, monkeypatch
):
    runs = tmp_path_factory.mktemp("runs")
    lrcore.Runs(runs).add(compressed, "kept")
    monkeypatch.setenv("LRCORE_RUNS", str(runs))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe" * 9)
    paths = {"MODEL": tiny_llama, "SMALL": compressed, "OUT": tmp_path / "out"}
    paths["BINARY"] = tmp_path / "binary.txt"
    refused(*(paths.get(word, word) for word in words))


@pytest.mark.parametrize("variable", ["LRCORE_CACHE_LIMIT", "LRCORE_RUNS"])
def test_unusual_environment_variables_are_refused(variable, refused, monkeypatch):
    value = {"LRCORE_CACHE_LIMIT": DIGITS, "LRCORE_RUNS": f"{NO_HOME}/runs"}[variable]
    monkeypatch.setenv(variable, value)
    refused("cache" if "CACHE" in variable else "runs")
