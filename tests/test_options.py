"""Settings of a method: kinds, ranges, and what a wrong one is told."""

import pytest

from lrcore.errors import InputError
from lrcore.options import Option, read_options
from lrcore.recipe import Recipe

OPTIONS = (
    Option("junction", "left", "which side", choices=("left", "right")),
    Option("rounds", 8, "how often", low=1, high=20),
    Option("alpha", 0.5, "how much", low=0.0),
    Option("bias", True, "whether"),
)


def test_defaults_and_words_of_the_command_line():
    assert read_options("method x", OPTIONS, {}) == {
        "junction": "left",
        "rounds": 8,
        "alpha": 0.5,
        "bias": True,
    }
    given = {"junction": "right", "rounds": "3", "alpha": "0.25", "bias": "off"}
    assert read_options("method x", OPTIONS, given) == {
        "junction": "right",
        "rounds": 3,
        "alpha": 0.25,
        "bias": False,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"junctoin": "left"}, "junction"),
        ({"junction": "lefty"}, "left"),
        ({"rounds": 0}, "at least 1, at most 20"),
        ({"rounds": "many"}, "whole number"),
        ({"rounds": 2.5}, "whole number"),
        ({"alpha": -1}, "at least 0"),
        ({"bias": "maybe"}, "on or off"),
    ],
)
def test_a_wrong_option_is_told_what_to_write(given, words):
    with pytest.raises(InputError, match=words):
        read_options("method x", OPTIONS, given)


def test_a_method_without_options_says_so():
    with pytest.raises(InputError, match="no options"):
        read_options("method svd", (), {"rank": 3})


def test_options_travel_with_the_recipe():
    recipe = Recipe(options={"junction": "left", "rounds": 3})
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert "--option junction=left --option rounds=3" in recipe.command()
    with pytest.raises(InputError, match="Option junction"):
        Recipe(options={"junction": ["left"]})
