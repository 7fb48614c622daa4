"""Every method of the table on hard inputs: its objective, in sixty digits, is the least there is.

Each kind of input is met by one kind of layer here; all of them, with every option and at every
rank, are `make soak`'s.
"""

import mpmath
import pytest
from exact_optima import above_the_least
from exact_references import REFERENCES
from hard_layers import KINDS, LAYERS
from sixty_digits import DIGITS

from lrcore.methods import METHODS


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(DIGITS):
        yield


def test_every_method_of_the_table_has_a_reference() -> None:
    assert REFERENCES.keys() == METHODS.keys()


def in_turn(names: list[str], number: int) -> str:
    return names[number % len(names)]


DEFAULTS = [
    (name, in_turn([*LAYERS], place + turn), kind)
    for turn, name in enumerate(METHODS)
    for place, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("name", "layer", "kind"), DEFAULTS)
def test_the_objective_is_the_least_there_is(name: str, layer: str, kind: str) -> None:
    assert above_the_least(name, {}, layer, kind) == []
