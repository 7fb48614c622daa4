"""All methods and options on all hard layers at all ranks, compared with 60-digit optima; a part of
them runs in `tests/methods/test_exact_optima.py`.
"""

import mpmath
import pytest
from exact_optima import above_the_least
from hard_layers import KINDS, LAYERS, SMALL
from method_options import VARIANTS
from sixty_digits import DIGITS

from lrcore.methods import METHODS

ROWS = [
    pytest.param(name, options, id="-".join((name, *map(str, options.values()))))
    for name in METHODS
    for options in ({}, *VARIANTS.get(name, ()))
    if options.get("fold", 1) <= SMALL.head // 2
]


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "options"), ROWS)
def test_the_objective_is_the_optimum_at_every_rank(name, options, kind, layer) -> None:
    with mpmath.workdps(DIGITS):
        assert above_the_least(name, options, layer, kind, every_rank=True) == []
