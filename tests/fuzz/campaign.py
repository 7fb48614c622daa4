"""Campaigns of random input: short ones with fixed input, long ones (`make soak`) with input by
LRCORE_SOAK_SEED.
"""

import os
from collections.abc import Callable

import hypothesis
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

# Hypothesis also tries constants of all imported modules, so the input would depend on the tests
# that ran before.
NO_CONSTANTS = providers.Constants()
providers._get_local_constants = lambda: NO_CONSTANTS

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
# Fraction of a long campaign to run.
SHARE = float(os.environ.get("LRCORE_SOAK_SHARE", "1"))
COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(hypothesis.HealthCheck),
}


def short(examples: int, **options: int) -> hypothesis.settings:
    """Return the settings of a campaign in each test run."""
    return hypothesis.settings(max_examples=examples, derandomize=True, **COMMON, **options)


def long(examples: int, **options: int) -> hypothesis.settings:
    """Return the settings of a campaign in `make soak`."""
    return hypothesis.settings(max_examples=max(1, round(examples * SHARE)), **COMMON, **options)


def run_campaign(
    settings: hypothesis.settings, check: Callable[..., None], *parts: st.SearchStrategy
) -> int:
    """Run a check on values drawn from these strategies, and return the number of accepted ones.
    Raise the failure of the smallest example; values tried to shrink it are not counted.
    """
    count = 0

    @settings
    @hypothesis.given(st.tuples(*parts))
    def counted(values):
        nonlocal count
        check(*values)
        count += 1

    if not settings.derandomize:
        counted = hypothesis.seed(SEED)(counted)
    counted()
    return count
