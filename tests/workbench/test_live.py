"""The live figure: of the newest request, one at a time, equal to what compressing and measuring
gives.
"""

import math
import threading
import time
from dataclasses import replace
from math import log

import pytest

import lrcore
from workbench import continuation, markup, text
from workbench import live as live_figures
from workbench.live import (
    LENGTH,
    MORE,
    WINDOWS,
    Figure,
    Live,
    LiveRequest,
    affordable,
    figure_key,
    tokens_run,
)
from workbench.objects import ObjectCache
from workbench.survey import ranked
from workbench.tabs.allocation import handlers

MODEL = "demo-llama"


@pytest.fixture(scope="module")
def factors():
    return lrcore.prepare(lrcore.load(MODEL), small())


def small(**changes):
    return lrcore.Recipe(samples=4, seq_len=32, **changes)


def request(factors, recipe, browser="one"):
    plan = lrcore.allocate(factors, recipe)
    return LiveRequest(figure_key(factors, recipe, plan), browser, factors, recipe, plan)


def settled(live, key, seconds=120):
    end = time.monotonic() + seconds
    while live.peek(key) is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    return live.peek(key)


def test_the_newest_request_wins_and_is_what_the_core_measures(factors):
    live = Live(ObjectCache())
    requests = [request(factors, small(ratio=ratio)) for ratio in (0.5, 0.4, 0.3)]
    for one in requests:
        live.request(one)
    assert live.newest("one") == requests[-1].key
    figure = settled(live, requests[-1].key)
    assert [live.peek(one.key) for one in requests[:-1]] == [
        None,
        None,
    ]  # nobody looks at them any longer
    model = lrcore.load(MODEL)
    result = lrcore.evaluate(
        lrcore.compress(model, requests[-1].recipe, factors),
        "stories",
        samples=WINDOWS,
        seq_len=LENGTH,
        batch=2,
    )
    assert figure.perplexity == result.perplexity
    assert figure.protocol["tokens"] == WINDOWS * LENGTH


def test_a_job_measures_in_its_own_thread_and_what_is_known_once(factors):
    live, one, dense = Live(ObjectCache()), request(factors, small(ratio=0.3)), lrcore.load(MODEL)
    threads = set()

    def step(*_):
        threads.add(threading.get_ident())

    live.measure(one, dense, step)
    assert live.peek(one.key).perplexity > 1
    assert threads == {threading.get_ident()}
    live.measure(one, dense, step)
    assert (live.newest("one"), live.count()) == (None, 1)

    def cancelled(*_):
        raise lrcore.Cancelled("measure")

    other = request(factors, small(ratio=0.4))
    with pytest.raises(lrcore.Cancelled):
        live.measure(other, dense, cancelled)
    assert live.peek(other.key) is None


def measured(perplexity, spread=0.0, **protocol):
    """A figure of four windows, whose losses differ by a spread of nats."""
    steps = (-spread, spread, -spread, spread)
    return Figure(perplexity, 1.5, protocol, losses=tuple(log(perplexity) + one for one in steps))


def test_more_windows_on_request_take_the_place_of_fewer_and_begin_with_them(factors):
    live, recipe = Live(ObjectCache()), small(ratio=0.4)
    one = request(factors, recipe)
    live.request(one)
    few = settled(live, one.key)
    live.request(replace(one, windows=MORE))
    live.request(one)  # the page was drawn again meanwhile
    end = time.monotonic() + 120
    while live.measures_more(one.browser):
        assert time.monotonic() < end
        time.sleep(0.02)
    many = live.peek(one.key)
    assert many.protocol["tokens"] == MORE * LENGTH == 8192
    assert many.losses[:WINDOWS] == pytest.approx(few.losses, rel=1e-6)
    assert many.beside(few) == pytest.approx(few.perplexity, rel=1e-6)
    change, error = many.above(few)
    assert abs(change) < 1e-6
    assert error < 1e-6
    live.request(one)
    assert not live.measures_more(one.browser)  # nothing is measured again


def test_ranks_on_show_are_held_against_even_ones():
    def message(perplexity, even, spread=0.001):
        return markup.against_uniform(
            "p",
            None if perplexity is None else measured(perplexity, spread),
            None if even is None else measured(even),
        )

    assert text.MEASURING in message(2.0, None)
    assert "data-known='False'" in message(None, 2.0)
    assert "15.0% ± 0.1% above uniform ones" in message(2.3, 2.0)
    assert "hurts" in message(2.3, 2.0)
    assert "helps" in message(1.7, 2.0)
    assert "15.0% ± 0.0% below uniform ones" in message(1.7, 2.0)
    assert "no difference" in message(2.002, 2.0)
    # a spread of 0.1 nats over four windows: 0.058 from window to window, 11.5 % twice
    assert "helps" not in message(1.8, 2.0, spread=0.1)
    assert "helps" in message(1.7, 2.0, spread=0.1)
    assert "a loss is not finite" in markup.against_uniform(
        "p", Figure(None, 1.5, {}), measured(2.0)
    )


def test_the_ranking_names_the_lowest_and_keeps_what_is_on_show():
    result = sorted((1.5 + 0.01 * i, "a3", f"p{i}", i == 48, 0.012) for i in range(50))
    message = markup.ranking(result)
    assert "a3 with p0 is lowest" in message
    assert "a3 with p48, shown above, is 32.0% above it" in message
    assert "+0.7% ± 1.2%</td>" in message  # of p1
    assert message.count("<tr class") == markup.MOST_RANKED + 1
    assert 2 * len(lrcore.methods()) <= markup.MOST_RANKED  # every method by a policy and uniform
    assert markup.ranking(result[:1]) == ""


def test_a_figure_of_more_windows_is_ranked_on_those_that_all_have():
    few, many = measured(2.0, 0.01), measured(1.9, 0.02)
    many = replace(many, perplexity=2.4, losses=(*many.losses, *[log(3.0)] * 4))
    low, high = ranked([("a3", "uniform", few), ("a3", "softmax", many)], ("a3", "softmax"))
    assert (low.perplexity, high.perplexity) == (pytest.approx(1.9), 2.0)
    assert (low.policy, low.shown, low.error) == ("softmax", True, 0)
    assert high.error == pytest.approx(few.above(many)[1])
    assert ranked([], ("a3", "softmax")) == []


def test_no_verdict_rests_on_calibration_text():
    seen = [measured(value, on_calibration_text=True) for value in (2.3, 2.0)]
    message = markup.against_uniform("p", *seen)
    assert text.NO_VERDICT in message
    assert "hurts" not in message
    cell = markup.actual("p", seen[0])
    assert text.ON_CALIBRATION_TEXT in cell
    assert "held-out" not in cell
    assert "held-out" in markup.actual("p", Figure(2.3, 1.5, {"source": "a.txt:test"}))
    both = (1.5, "a3", "uniform", True, math.nan), (1.6, "a3", "softmax", False, math.nan)
    ranked = markup.ranking(both, held_out=False)
    assert "%</td>" in ranked
    assert "±" not in ranked  # of a single window
    assert text.NOT_RANKED in ranked
    assert "a3 with uniform is lowest" not in ranked


def test_the_live_figure_of_a_file_is_of_its_held_out_tail(tmp_path, story_text, story_file):
    path = tmp_path / "long.txt"
    path.write_text(" ".join([story_text] * 4), encoding="utf-8")
    dense, live = lrcore.load(MODEL), Live(ObjectCache())
    for data, source, held_out in (
        (path, f"{path}:test", True),
        (story_file, str(story_file), False),
    ):
        recipe = small(data=str(data), method="svd_llm", ratio=0.3)
        one = request(lrcore.prepare(dense, recipe), recipe)
        live.measure(one, dense, lambda *_: None)
        figure = live.peek(one.key)
        assert figure.error == ""
        assert (figure.protocol["source"], figure.held_out) == (source, held_out)
        shown = markup.actual(one.key, figure)
        assert data.name in shown
        assert str(data.parent) not in shown  # of which a narrow line would show nothing else


def test_the_bars_say_where_most_and_least_is_kept(factors):
    even = lrcore.allocate(factors, small(ratio=0.3))
    assert handlers.conclusion(even, even) == text.UNIFORM_BARS
    plan = lrcore.allocate(factors, small(ratio=0.3, overrides={"2.qk": 2, "4.mlp": 688}))
    assert "layer 4 · mlp (100% of its rank), least of layer 2 · qk (6%)" in handlers.conclusion(
        plan, even
    )


def test_each_browser_has_its_own_request(factors):
    live = Live(ObjectCache())
    first, second = (
        request(factors, small(ratio=0.2), "one"),
        request(factors, small(ratio=0.6), "two"),
    )
    live.request(first)
    live.request(second)
    assert settled(live, first.key).perplexity < settled(live, second.key).perplexity


def test_a_figure_that_a_page_looks_at_stays_however_many_are_measured_meanwhile(
    factors, monkeypatch
):
    monkeypatch.setattr(live_figures, "KEPT", 2)
    live, plans = Live(ObjectCache()), [request(factors, small(ratio=r)) for r in (0.2, 0.3, 0.4)]
    for one in plans:
        live.measure(one, lrcore.load(MODEL), lambda *_: None)
        assert live.peek(plans[0].key) is not None
    assert live.peek(plans[1].key) is None
    assert live.peek(plans[2].key) is not None


def test_a_figure_that_cannot_be_had_says_why(factors):
    live, one = Live(ObjectCache()), request(factors, small(ratio=0.2, data="no-such-text"))
    live.request(one)
    assert "no-such-text" in settled(live, one.key).error


def test_only_what_takes_seconds_is_measured_unasked(factors):
    assert affordable(factors, lrcore.Recipe(), refits=False)
    assert affordable(factors, lrcore.Recipe(method="fused"), refits=True)
    assert not affordable(factors, lrcore.Recipe(refit="on", samples=4096), refits=True)
    runs = [tokens_run(lrcore.Recipe(refit=refit), refits=True) for refit in ("on", "trained")]
    assert runs[1] > 2 * runs[0]


def test_the_key_follows_what_the_figure_depends_on(factors):
    keys = {
        request(factors, small(**changes)).key
        for changes in ({}, {"ratio": 0.5}, {"refit": "on"}, {"calibration": "sequential"})
    }
    assert len(keys) == 4


def test_a_prompt_is_continued_by_what_was_measured_and_another_by_the_same_ranks(factors):
    live, one = Live(ObjectCache()), request(factors, small(ratio=0.5))
    model = lrcore.load(MODEL)
    compressed = lrcore.compress(model, one.recipe, factors)
    for prompt in ("One day", "Tom saw"):
        live.request(replace(one, prompt=prompt))
        end = time.monotonic() + 120
        while live.unfinished("one"):
            assert time.monotonic() < end
            time.sleep(0.02)
        said = live.continuation(one.key, prompt)
        text = "".join(token for token, *_ in said.tokens)
        assert text == prompt + lrcore.generate(compressed, prompt, continuation.NEW_TOKENS)
        assert (
            said.tokens[1:]
            == tuple(
                (token, old, new)
                for (token, old), (_, new) in zip(
                    lrcore.token_losses(model, text),
                    lrcore.token_losses(compressed, text),
                    strict=True,
                )
            )[1:]
        )  # nothing predicts the first token
        own = "".join(token for token, _ in said.dense)
        assert own == prompt + lrcore.generate(model, prompt, continuation.NEW_TOKENS)
        same = "".join(token for token, *_ in said.tokens[: said.first])
        assert own.startswith(same)
        assert said.tokens[said.first][0] != said.dense[said.first][0]
    assert live.continuation(one.key, "") is None


def test_a_prompt_longer_than_the_context_is_said_and_figures_come_before_texts(factors):
    live = Live(ObjectCache())
    first = replace(request(factors, small(ratio=0.2), "one"), prompt="word " * 2000)
    live.request(first)
    assert settled(live, first.key).perplexity
    end = time.monotonic() + 120
    while live.unfinished("one"):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert "context" in live.continuation(first.key, first.prompt).error
    known = replace(first, prompt="One day", when=0.0)
    new = replace(request(factors, small(ratio=0.25), "two"), when=1.0)
    waiting = Live.__new__(Live)  # whose worker does not run
    waiting._changed, waiting._known = threading.Condition(), {first.key: live.peek(first.key)}
    waiting._requests = {"one": known, "two": new}
    assert waiting._next() is new
