"""Invalid recipes and sweeps on the command line: one error line, exit code 2, nothing written.

Each case of a table contains one error.
"""

import json

import pytest

import lrcore

pytestmark = pytest.mark.one_in(3)

LARGE = 10**12
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
    "bos": ("sometimes", 5, None),
    "calibration_mode": ("both", 5),
    "refit": ("maybe", 5),
    "method": ("a4", 5, None, []),
    "policy": ("fair", 5, None, []),
    "ratio": (0, 1, -0.1, 1.5, "0.2", None, True, [0.2], float("nan"), float("inf"), 0.999),
    "budget": ("money", 5, None),
    "temperature": (0, -1, "warm", float("nan"), float("inf"), True, []),
    "rounding": ("up", 5),
    "rank_multiple": (0, -1, 1.5, "8", LARGE),
    "component_ratios": (5, [], {"qk": 2}, {"qk": "x"}, {"zz": 0.1}, {5: 0.1}, {"qk": None}),
    "options": (5, [1], {"nothing": 1}, {"scores": "x"}, {"scores": None}, {5: 5}),
    "policy_options": (5, [1], {"nothing": 1}, {5: 5}),
    "rank_overrides": (5, [1], {"0.mlp": 0}, {"0.mlp": LARGE}, {"99.mlp": 4}, {"mlp": 4}, {5: 5}),
    "target": ("lama.cpp", 5, None, "", True, [], {"name": "vllm"}),
    "nothing": (1,),
    "methd": ("a3",),
}
RECIPES = [(name, value) for name, values in FIELDS.items() for value in values]


def test_each_recipe_field_has_invalid_values():
    assert lrcore.Recipe.__dataclass_fields__.keys() - FIELDS.keys() == set()


@pytest.mark.parametrize(("name", "value"), RECIPES, ids=lambda value: repr(value)[:20])
def test_invalid_recipe_fields_are_refused(name, value, refused, tiny_llama, story_file, tmp_path):
    valid = {"model": str(tiny_llama), "data": str(story_file), "samples": 2, "seq_len": 16}
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(valid | {name: value}))
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
def test_invalid_recipe_files_are_refused(name, refused, tmp_path):
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
def test_invalid_sweeps_are_refused(fields, refused, tiny_llama, story_file, tmp_path):
    valid = {"model": str(tiny_llama), "data": str(story_file), "samples": 2, "seq_len": 16}
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(valid | fields))
    refused("sweep", file, "--out", tmp_path / "sweep")
