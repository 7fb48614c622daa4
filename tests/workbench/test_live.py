"""The live figure: of the newest wish, one at a time, equal to what compressing and measuring gives."""

import time

import pytest

import lrcore
from workbench.live import LENGTH, WINDOWS, Live, Wish, affordable, key_of
from workbench.shelf import Shelf


@pytest.fixture(scope="module")
def factors():
    return lrcore.prepare(lrcore.load("demo-llama"), small())


def small(**changes):
    return lrcore.Recipe(samples=4, seq_len=32, **changes)


def wish(factors, recipe, browser="one"):
    plan = lrcore.allocate(factors, recipe)
    return Wish(key_of(factors, recipe, plan), browser, factors, recipe, plan)


def settled(live, key, seconds=120):
    end = time.monotonic() + seconds
    while live.peek(key) is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    return live.peek(key)


def test_the_newest_wish_wins_and_is_what_the_core_measures(factors):
    live = Live(Shelf())
    wishes = [wish(factors, small(ratio=ratio)) for ratio in (0.5, 0.4, 0.3)]
    for one in wishes:
        live.ask(one)
    assert live.newest("one") == wishes[-1].key
    figure = settled(live, wishes[-1].key)
    assert [live.peek(one.key) for one in wishes[:-1]] == [None, None]  # nobody looks at them any longer
    model = lrcore.load("demo-llama")
    found = lrcore.evaluate(lrcore.compress(model, wishes[-1].recipe, factors), "stories", samples=WINDOWS, seq_len=LENGTH, batch=2)
    assert figure.perplexity == found.perplexity
    assert figure.protocol["tokens"] == WINDOWS * LENGTH


def test_each_browser_has_its_own_wish(factors):
    live = Live(Shelf())
    first, second = wish(factors, small(ratio=0.2), "one"), wish(factors, small(ratio=0.6), "two")
    live.ask(first)
    live.ask(second)
    assert settled(live, first.key).perplexity < settled(live, second.key).perplexity


def test_a_figure_that_cannot_be_had_says_why(factors):
    live, one = Live(Shelf()), wish(factors, small(ratio=0.2, data="no-such-text"))
    live.ask(one)
    assert "no-such-text" in settled(live, one.key).error


def test_only_what_takes_seconds_is_measured_unasked(factors):
    assert affordable(factors, lrcore.Recipe())
    assert affordable(factors, lrcore.Recipe(method="fused"))
    assert not affordable(factors, lrcore.Recipe(refit="on", samples=4096))


def test_the_key_follows_what_the_figure_depends_on(factors):
    keys = {wish(factors, small(**changes)).key for changes in ({}, {"ratio": 0.5}, {"refit": "on"}, {"calibration": "sequential"})}
    assert len(keys) == 4
