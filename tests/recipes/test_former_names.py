"""Former names of fields, steps, flags and values, which files and command lines may use."""

import json

import pytest
import yaml

import lrcore
from lrcore.cli import main
from lrcore.compression.steps.chain import chain_key, read_chains
from lrcore.recipes import former_names
from lrcore.recipes.history import LayersDropped, Quantized
from lrcore.recipes.provenance import Provenance

FORMER = {
    "calibration": "sequential",
    "multiple": 4,
    "overrides": {"0.qk": 4},
    "budget": "total",
    "method": "fused",
    "options": {"qk": "centred"},
}
RECIPE = lrcore.Recipe(
    calibration_mode="sequential",
    rank_multiple=4,
    rank_overrides={"0.qk": 4},
    budget="all_params",
    method="fused",
    options={"qk": "centered"},
)


def test_recipe_with_former_names_loads_and_is_written_with_current_names(tmp_path):
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(FORMER))
    recipe = lrcore.Recipe.read(file)
    assert recipe == RECIPE
    assert json.loads(recipe.to_json())["rank_overrides"] == {"0.qk": 4}
    assert FORMER.items() <= recipe.identity().items()


def test_python_accepts_only_current_names():
    with pytest.raises(TypeError):
        lrcore.Recipe(calibration="sequential")


def test_field_under_both_names_raises():
    with pytest.raises(lrcore.InputError, match="'rank_multiple' is given twice"):
        lrcore.Recipe.from_dict({"multiple": 2, "rank_multiple": 4})


def test_sweep_with_former_names_loads(tmp_path):
    former = {
        **FORMER,
        "rows": [
            [{"shorten": {"layers": 1, "by": "loss"}}, "compress"],
            {"quantise": {"quantiser": "gptq"}},
            {"sparsify": {"pattern": "unstructured", "kept": 0.3}},
        ],
    }
    present = {
        **RECIPE.to_dict(),
        "rows": [
            [{"prune_layers": {"layers": 1, "criterion": "loss"}}, "compress"],
            {"quantize": {"quantizer": "gptq"}},
            {"sparsify": {"pattern": "unstructured", "density": 0.3}},
        ],
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(former))
    sweep = lrcore.Sweep.read(tmp_path / "sweep.yaml")
    assert sweep.cells() == lrcore.Sweep.from_dict(present).cells()


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (["compress", {"quantise": {"quantiser": "gptq", "bits": 4}}], "ffab4735b5b151be94a2ea59"),
        ([{"shorten": {"layers": 1, "by": "loss"}}, "compress"], "93ebcc96094d9e50beee2be6"),
        ({"slice": {"multiple": 2}}, "1f5e9d35e6781df530d7d3ce"),
        ({"sparsify": {"pattern": "unstructured", "kept": 0.3}}, "ba1f73f96f8f5bd71e2b5c1f"),
        ({"prune-experts": {"experts": 1, "by": "loss"}}, "e5e84b6f7f0619c13d29ab25"),
        ("quantise", "6734a3cc6ed0e705f9610f99"),
    ],
)
def test_keys_of_chains_do_not_change(row, key):
    base = lrcore.Recipe.from_dict({"model": "x", **FORMER, "overrides": {}})
    assert [chain_key(chain) for chain in read_chains(row, base)] == [key]


def test_report_with_former_names_loads():
    steps = [
        {"kind": "shortened", "by": "loss", "gone": [1], "of": 3},
        {"kind": "quantised", "method": "hqq", "bits": 4, "group": 16},
    ]
    values = {"version": 2, "base": None, "account": None, "history": steps}
    assert Provenance.from_dict(values).history == (
        LayersDropped("loss", (1,), 3),
        Quantized("hqq", 4, 16),
    )


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("shorten M OUT --layers 1 --by loss", "prune-layers M OUT --layers 1 --criterion loss"),
        ("quantise M OUT --quantiser=gptq", "quantize M OUT --quantizer=gptq"),
        ("sparsify M OUT --kept 0.3", "sparsify M OUT --density 0.3"),
        (
            "allocate M --speed --override 0.qk=4",
            "allocate M --budget=latency --rank-override 0.qk=4",
        ),
        ("compress M --calibration sequential", "compress M --calibration-mode sequential"),
        ("compare A B --speed", "compare A B --measure-speed"),
        ("generate M --prompt shorten --seed 1", "generate M --prompt shorten --seed 1"),
        ("compare A -- --speed", "compare A -- --speed"),
        ("--version", "--version"),
    ],
)
def test_former_commands_and_flags_become_the_current_ones(former, present):
    assert former_names.current_arguments(former.split()) == present.split()


@pytest.mark.parametrize("command", former_names.FLAGS)
def test_help_shows_only_current_names(command, capsys):
    assert main([command, "--help"]) == 0
    words = capsys.readouterr().out.split()
    for former, present in former_names.FLAGS[command].items():
        assert present.partition("=")[0] in words
        assert former not in words
