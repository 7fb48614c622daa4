"""Options of methods and policies: kinds, ranges, and messages for invalid values."""

from dataclasses import asdict, dataclass

import pytest

from lrcore.recipes.recipe import Recipe
from lrcore.system.errors import InputError
from lrcore.system.settings import NoOptions, option, options_of, read_options


@dataclass(frozen=True)
class Options:
    junction: str = option("left", "which side", choices=("left", "right"))
    rounds: int = option(8, "how often", low=1, high=20)
    alpha: float = option(0.5, "how much", low=0.0)
    bias: bool = option(True, "whether")
    temperature: float | None = None  # not an option: set by code


def test_options_have_defaults_and_are_read_from_strings():
    assert read_options("method x", Options, {}) == Options()
    values = {"junction": "right", "rounds": "3", "alpha": "0.25", "bias": "off"}
    assert asdict(read_options("method x", Options, values)) == {
        "junction": "right",
        "rounds": 3,
        "alpha": 0.25,
        "bias": False,
        "temperature": None,
    }


def test_options_describe_themselves():
    rows = [row.describe() for row in options_of(Options)]
    assert rows == [
        {
            "name": "junction",
            "default": "left",
            "about": "which side",
            "choices": ("left", "right"),
        },
        {"name": "rounds", "default": 8, "about": "how often", "low": 1, "high": 20},
        {"name": "alpha", "default": 0.5, "about": "how much", "low": 0.0},
        {"name": "bias", "default": True, "about": "whether"},
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"junctoin": "left"}, "junction"),
        ({"junction": "lefty"}, "left"),
        ({"rounds": 0}, "at least 1, at most 20"),
        ({"rounds": "many"}, "whole number"),
        ({"rounds": 2.5}, "whole number"),
        ({"alpha": -1}, "at least 0"),
        ({"bias": "maybe"}, "on or off"),
        ({"temperature": 0.3}, "temperature"),
    ],
)
def test_an_invalid_option_is_reported_with_valid_values(values, words):
    with pytest.raises(InputError, match=words):
        read_options("method x", Options, values)


def test_options_of_a_method_without_options_are_refused():
    with pytest.raises(InputError, match="no options"):
        read_options("method svd", NoOptions, {"rank": 3})


def test_options_are_part_of_the_recipe():
    recipe = Recipe(options={"junction": "left", "rounds": 3})
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert "--option junction=left --option rounds=3" in recipe.command()
    with pytest.raises(InputError, match="Option junction"):
        Recipe(options={"junction": ["left"]})
