"""Campaigns of random input: the same input each time in the short form, input by LRCORE_SOAK_SEED
in the long form (`make soak`).
"""

import os
from collections.abc import Callable

import hypothesis
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

# Hypothesis also tries the constants of all modules that happen to be imported: what is drawn would
# depend on the tests that ran before.
NOTHING = providers.Constants()
providers._get_local_constants = lambda: NOTHING

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
# Fraction of a long campaign (`make soak`) to run.
SHARE = float(os.environ.get("LRCORE_SOAK_SHARE", "1"))
COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(hypothesis.HealthCheck),
}


def short(examples: int, **options: int) -> hypothesis.settings:
    """For every run of the tests."""
    return hypothesis.settings(max_examples=examples, derandomize=True, **COMMON, **options)


def long(examples: int, **options: int) -> hypothesis.settings:
    """For `make soak`."""
    return hypothesis.settings(max_examples=max(1, round(examples * SHARE)), **COMMON, **options)


def run_campaign(
    settings: hypothesis.settings, check: Callable[..., None], *parts: st.SearchStrategy
) -> int:
    """Run a check on what these strategies draw. Returns how many were drawn and not passed over,
    those tried while a failure is made smaller not counted: that one is raised.
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
