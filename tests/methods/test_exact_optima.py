"""Optimality of all methods on hard inputs, in sixty digits.

This module tests a single layer per kind of input; `make soak` tests all combinations, with all
options and ranks.
"""

import mpmath
import pytest
from exact_optima import above_the_least
from exact_references import REFERENCES
from hard_layers import KINDS, LAYERS
from sixty_digits import DIGITS

from lrcore.methods import METHODS

pytestmark = pytest.mark.one_in(3)


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(DIGITS):
        yield


def test_every_method_has_a_reference() -> None:
    assert REFERENCES.keys() == METHODS.keys()


def in_turn(names: list[str], number: int) -> str:
    return names[number % len(names)]


DEFAULTS = [
    (name, in_turn([*LAYERS], position + turn), kind)
    for turn, name in enumerate(METHODS)
    for position, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("name", "layer", "kind"), DEFAULTS)
def test_objective_is_minimal(name: str, layer: str, kind: str) -> None:
    assert above_the_least(name, {}, layer, kind) == []
