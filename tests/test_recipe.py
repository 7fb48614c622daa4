"""A recipe survives its files, refuses what it does not know, and writes the command that does
the same.
"""

import shlex
from dataclasses import fields

import pytest
import yaml

from lrcore.errors import InputError
from lrcore.recipe import Recipe


def test_json_and_yaml_give_the_recipe_back(tmp_path) -> None:
    recipe = Recipe(
        method="modegpt", ratio=0.35, temperature=0.1, overrides={"3.mlp": 120}, revision="main"
    )
    (tmp_path / "a.json").write_text(recipe.to_json())
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(recipe.to_dict()))
    assert Recipe.read(tmp_path / "a.json") == recipe == Recipe.read(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    ("changes", "says"),
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
        ({"overrides": {"mlp": 3}}, "layer.component"),
        ({"component_ratios": {"mlp": 1.0}}, "component mlp"),
    ],
)
def test_bad_values_are_named(changes: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Recipe.from_dict(changes)


def test_files_that_are_no_recipe(tmp_path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "broken.json").write_text('{"ratio": ')
    for name, says in {
        "list.yaml": "mapping",
        "broken.json": "neither JSON nor YAML",
        "none.json": "No recipe file",
    }.items():
        with pytest.raises(InputError, match=says):
            Recipe.read(tmp_path / name)


def test_the_command_line_says_the_same() -> None:
    recipe = Recipe(
        data="my file.txt",
        policy="softmax",
        temperature=0.2,
        overrides={"0.ov": 8},
        component_ratios={"qk": 0.3},
        policy_options={"cap": 0.8},
    )
    words = shlex.split(recipe.command("out dir"))
    assert words[:5] == ["python", "-m", "lrcore", "compress", "demo-llama"]
    pairs = dict(zip(words[5::2], words[6::2], strict=True))
    assert pairs["--data"] == "my file.txt"
    assert pairs["--temperature"] == "0.2"
    assert pairs["--override"] == "0.ov=8"
    assert pairs["--component-ratio"] == "qk=0.3"
    assert pairs["--policy-option"] == "cap=0.8"
    assert pairs["--out"] == "out dir"
    assert "--budget" not in pairs  # defaults stay unsaid


def test_every_field_is_of_one_group() -> None:
    groups = [Recipe.fields_of(one) for one in ("source", "windows", "passes", "methods", "plan")]
    assert sorted(sum(groups, ())) == sorted(f.name for f in fields(Recipe))
