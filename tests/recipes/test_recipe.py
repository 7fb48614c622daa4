"""Recipes: files, validation, and the equivalent command line."""

import shlex
from dataclasses import fields

import pytest
import yaml

from lrcore.recipes.recipe import Recipe
from lrcore.system.errors import InputError
from lrcore.system.settings import settings_of


def test_json_and_yaml_return_the_same_recipe(tmp_path) -> None:
    recipe = Recipe(
        method="modegpt",
        ratio=0.35,
        temperature=0.1,
        rank_overrides={"3.mlp": 120},
        revision="main",
    )
    (tmp_path / "a.json").write_text(recipe.to_json())
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(recipe.to_dict()))
    assert Recipe.read(tmp_path / "a.json") == recipe == Recipe.read(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ratio": 0}, "strictly between 0 and 1"),
        ({"ratio": 1.0}, "strictly between 0 and 1"),
        ({"ratio": "a lot"}, "strictly between 0 and 1"),
        ({"samples": 0}, "samples"),
        ({"seq_len": 1.5}, "seq_len"),
        ({"sampling": "randm"}, "Did you mean 'random'"),
        ({"budget": "parms"}, "Did you mean 'params'"),
        ({"temperature": -1}, "temperature"),
        ({"metod": "a3"}, "Did you mean 'method'"),
        ({"rank_overrides": {"mlp": 3}}, "layer.component"),
        ({"component_ratios": {"mlp": 1.0}}, "component mlp"),
    ],
)
def test_invalid_values_raise(changes: dict, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        Recipe.from_dict(changes)


def test_the_text_field_of_a_file_is_part_of_the_name_of_the_data(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text("data: rows.jsonl\ntext_field: content\n")
    recipe = Recipe.read(tmp_path / "a.yaml")
    assert recipe == Recipe(data="rows.jsonl#content")
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    with pytest.raises(InputError, match="needs a data set"):
        Recipe.from_dict({"text_field": "content"})


@pytest.mark.parametrize("number", ["1e-1", "1E-1", ".1e0", "1.e-1", "+1e-1", "10e-2", "0.1"])
@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_numbers_with_an_exponent_need_no_decimal_point(number, name, tmp_path) -> None:
    fields = ("ratio", "temperature", "component_ratios")
    values = dict.fromkeys(fields, number) | {"component_ratios": f'{{"mlp": {number}}}'}
    text = ", ".join(f'"{name}": {value}' for name, value in values.items())
    (tmp_path / name).write_text(f"{{{text}}}")
    recipe = Recipe.read(tmp_path / name)
    assert (recipe.ratio, recipe.temperature, recipe.component_ratios) == (0.1, 0.1, {"mlp": 0.1})


@pytest.mark.parametrize("number", ["1e3", "1E3", "1.e+3", "1.0e3", "10000e-1"])
def test_whole_numbers_with_an_exponent_are_valid_for_every_whole_number(number, tmp_path) -> None:
    path = tmp_path / "a.yaml"
    names = [name for name, entry in settings_of(Recipe).items() if entry.low is not None]
    lines = [f"{name}: {number}" for name in names]
    path.write_text(
        "\n".join([*lines, f"temperature: {number}", f"rank_overrides: {{1.mlp: {number}}}"])
    )
    recipe = Recipe.read(path)
    assert {"samples", "seq_len", "seed"} <= {*names}
    assert [getattr(recipe, name) for name in names] == [1000] * len(names)
    assert all(type(getattr(recipe, name)) is int for name in names)
    assert (recipe.temperature, recipe.rank_overrides) == (1000, {"1.mlp": 1000})


@pytest.mark.parametrize("number", ["1.5e0", "1e-3", "1e400"])
def test_other_numbers_with_an_exponent_are_refused_for_whole_numbers(number, tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(f"samples: {number}\n")
    with pytest.raises(InputError, match="samples must be a whole number"):
        Recipe.read(tmp_path / "a.yaml")


@pytest.mark.parametrize("text", ["1e", "e1", "1e-1x", "main", "1e1-5", "abc1e5"])
def test_texts_that_resemble_numbers_stay_texts(text, tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(f"revision: {text}\n")
    assert Recipe.read(tmp_path / "a.yaml").revision == text


@pytest.mark.parametrize(("value", "refit"), [("on", "on"), ("off", "off"), ("true", "on")])
def test_refit_accepts_yaml_booleans(value, refit, tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(f"refit: {value}\n")
    assert Recipe.read(tmp_path / "a.yaml").refit == refit


def test_keys_for_anchors_are_ignored(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(
        "x-shares: &shares {mlp: 0.3}\nx-base: &base\n  method: svd_llm\n  ratio: 0.3\n"
        "<<: *base\nratio: 0.4\ncomponent_ratios: *shares\n"
    )
    expected = Recipe(method="svd_llm", ratio=0.4, component_ratios={"mlp": 0.3})
    assert Recipe.read(tmp_path / "a.yaml") == expected
    (tmp_path / "b.yaml").write_text("options: {x-rounds: 3}\nX-other: 1\n")
    with pytest.raises(InputError, match="X-other"):
        Recipe.read(tmp_path / "b.yaml")


def test_files_that_are_not_a_recipe_raise(tmp_path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "broken.json").write_text('{"ratio": ')
    for name, expected in {
        "list.yaml": "mapping",
        "broken.json": "neither JSON nor YAML",
        "none.json": "No recipe file",
    }.items():
        with pytest.raises(InputError, match=expected):
            Recipe.read(tmp_path / name)


def test_command_line_is_equivalent_to_the_recipe() -> None:
    recipe = Recipe(
        data="my file.txt",
        policy="softmax",
        temperature=0.2,
        rank_overrides={"0.ov": 8},
        component_ratios={"qk": 0.3},
        policy_options={"cap": 0.8},
    )
    words = shlex.split(recipe.command("out dir"))
    assert words[:5] == ["python", "-m", "lrcore", "compress", "demo-llama"]
    pairs = dict(zip(words[5::2], words[6::2], strict=True))
    assert pairs["--data"] == "my file.txt"
    assert pairs["--temperature"] == "0.2"
    assert pairs["--rank-override"] == "0.ov=8"
    assert pairs["--component-ratio"] == "qk=0.3"
    assert pairs["--policy-option"] == "cap=0.8"
    assert pairs["--out"] == "out dir"
    assert "--budget" not in pairs  # defaults are omitted


def test_every_field_belongs_to_one_group() -> None:
    groups = [
        Recipe.fields_of(group) for group in ("source", "windows", "passes", "methods", "plan")
    ]
    assert sorted(sum(groups, ())) == sorted(f.name for f in fields(Recipe))
