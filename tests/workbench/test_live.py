"""The live perplexity of the displayed plan, measured in the background."""

import math
import threading
import time
from dataclasses import replace
from math import log

import pytest
from page_server import PATIENCE

import lrcore
from lrcore.evaluation.evaluate import token_losses
from lrcore.system.errors import Cancelled
from workbench import words
from workbench.state import continuation
from workbench.state import live as live_figures
from workbench.state.live import (
    LENGTH,
    MORE_WINDOWS,
    WINDOWS,
    LiveFigure,
    LiveMeasurements,
    LiveRequest,
    figure_key,
    is_affordable,
    tokens_run,
)
from workbench.state.objects import ObjectCache
from workbench.state.plan_view import uniform_message
from workbench.state.survey import rank_figures
from workbench.views import markup

MODEL = "demo-llama"


@pytest.fixture(scope="module")
def factors():
    return lrcore.prepare(lrcore.load(MODEL), small())


def small(**changes):
    return lrcore.Recipe(samples=4, seq_len=32, **changes)


def request(factors, recipe, browser="one"):
    plan = lrcore.allocate(factors, recipe)
    return LiveRequest(figure_key(factors, recipe, plan), browser, factors, recipe, plan)


def wait_for_figure(live, key, seconds=120):
    end = time.monotonic() + seconds
    while live.peek(key) is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    return live.peek(key)


def test_the_newest_request_is_measured_and_equals_the_evaluation_of_the_core(factors):
    live = LiveMeasurements(ObjectCache())
    requests = [request(factors, small(ratio=ratio)) for ratio in (0.5, 0.4, 0.3)]
    for live_request in requests:
        live.request(live_request)
    assert live.newest("one") == requests[-1].key
    figure = wait_for_figure(live, requests[-1].key)
    assert [live.peek(live_request.key) for live_request in requests[:-1]] == [
        None,
        None,
    ]  # no page displays them
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


def test_a_job_measures_in_its_own_thread_and_each_figure_once(factors):
    live, live_request, dense = (
        LiveMeasurements(ObjectCache()),
        request(factors, small(ratio=0.3)),
        lrcore.load(MODEL),
    )
    threads = set()

    def step(*_):
        threads.add(threading.get_ident())

    live.measure(live_request, dense, step)
    assert live.peek(live_request.key).perplexity > 1
    assert threads == {threading.get_ident()}
    live.measure(live_request, dense, step)
    assert (live.newest("one"), live.count()) == (None, 1)

    def cancelled(*_):
        raise Cancelled("measure")

    other_request = request(factors, small(ratio=0.4))
    with pytest.raises(Cancelled):
        live.measure(other_request, dense, cancelled)
    assert live.peek(other_request.key) is None


def make_figure(perplexity, spread=0.0, **protocol):
    """Return a figure of four windows with losses that differ by a spread in nats."""
    steps = (-spread, spread, -spread, spread)
    return LiveFigure(
        perplexity, 1.5, protocol, losses=tuple(log(perplexity) + step for step in steps)
    )


def test_a_measurement_of_more_windows_extends_the_first_one(factors):
    live, recipe = LiveMeasurements(ObjectCache()), small(ratio=0.4)
    live_request = request(factors, recipe)
    live.request(live_request)
    few = wait_for_figure(live, live_request.key)
    live.request(replace(live_request, windows=MORE_WINDOWS))
    live.request(live_request)  # the page was redrawn in the meantime
    end = time.monotonic() + PATIENCE
    while live.is_measuring_more(live_request.browser):
        assert time.monotonic() < end
        time.sleep(0.02)
    many = live.peek(live_request.key)
    assert many.protocol["tokens"] == MORE_WINDOWS * LENGTH == 8192
    assert many.losses[:WINDOWS] == pytest.approx(few.losses, rel=1e-6)
    assert many.perplexity_on_windows_of(few) == pytest.approx(few.perplexity, rel=1e-6)
    change, error = many.relative_change(few)
    assert abs(change) < 1e-6
    assert error < 1e-6
    live.request(live_request)
    assert not live.is_measuring_more(live_request.browser)  # measured already


def test_displayed_ranks_are_compared_with_uniform_ranks():
    def message(perplexity, even, spread=0.001):
        return markup.uniform_cell(
            "p",
            None if perplexity is None else make_figure(perplexity, spread),
            None if even is None else make_figure(even),
        )

    assert words.allocation.MEASURING in message(2.0, None)
    assert "data-known='False'" in message(None, 2.0)
    assert "Worse than uniform ranks by 15.0% ± 0.1%" in message(2.3, 2.0)
    assert "hurts" in message(2.3, 2.0)
    assert "Use uniform ranks (2 instead of 2.3)" in message(2.3, 2.0)
    assert "Use uniform ranks" not in message(1.7, 2.0) + message(2.002, 2.0)
    assert "helps" in message(1.7, 2.0)
    assert "Better than uniform ranks by 15.0% ± 0.0%" in message(1.7, 2.0)
    assert "No significant difference" in message(2.002, 2.0)
    # a spread of 0.1 nats: a standard error of 0.058 over four windows, 11.5 % twice
    assert "helps" not in message(1.8, 2.0, spread=0.1)
    assert "helps" in message(1.7, 2.0, spread=0.1)
    assert "loss is not finite" in markup.uniform_cell(
        "p", LiveFigure(None, 1.5, {}), make_figure(2.0)
    )


def test_the_ranking_names_the_lowest_and_includes_the_displayed_plan():
    result = sorted((1.5 + 0.01 * i, "a3", f"p{i}", i == 48, 0.012) for i in range(50))
    message = markup.ranking(result)
    assert "held-out sample: a3 with p0." in message
    assert "a3 with p48 (this plan) is 32.0% above it" in message
    assert "+0.7% ± 1.2%</td>" in message  # the row of p1
    assert message.count("<tr class") == markup.MOST_RANKED + 1
    assert (
        2 * len(lrcore.list_methods()) <= markup.MOST_RANKED
    )  # each method with a policy and with uniform ranks
    assert markup.ranking(result[:1]) == ""


def test_figures_are_ranked_on_their_common_windows():
    few, many = make_figure(2.0, 0.01), make_figure(1.9, 0.02)
    many = replace(many, perplexity=2.4, losses=(*many.losses, *[log(3.0)] * 4))
    low, high = rank_figures([("a3", "uniform", few), ("a3", "softmax", many)], ("a3", "softmax"))
    assert (low.perplexity, high.perplexity) == (pytest.approx(1.9), 2.0)
    assert (low.policy, low.is_displayed, low.error) == ("softmax", True, 0)
    assert high.error == pytest.approx(few.relative_change(many)[1])
    assert rank_figures([], ("a3", "softmax")) == []


def test_calibration_text_gives_no_verdict():
    seen = [make_figure(value, on_calibration_text=True) for value in (2.3, 2.0)]
    message = markup.uniform_cell("p", *seen)
    assert words.allocation.NOT_HELD_OUT in message
    assert "hurts" not in message
    cell = markup.actual_cell("p", seen[0])
    assert words.compare_and_runs.ON_CALIBRATION_TEXT in cell
    assert "held-out" not in cell
    assert "held-out" in markup.actual_cell("p", LiveFigure(2.3, 1.5, {"source": "a.txt:test"}))
    candidates = (1.5, "a3", "uniform", True, math.nan), (1.6, "a3", "softmax", False, math.nan)
    ranked = markup.ranking(candidates, held_out=False)
    assert "%</td>" in ranked
    assert "±" not in ranked  # from a single window
    assert words.allocation.RANKED_ON_CALIBRATION_TEXT in ranked
    assert "a3 with uniform." not in ranked


def test_the_live_figure_of_a_file_uses_its_held_out_tail(tmp_path, story_text, story_file):
    path = tmp_path / "long.txt"
    path.write_text(" ".join([story_text] * 4), encoding="utf-8")
    dense, live = lrcore.load(MODEL), LiveMeasurements(ObjectCache())
    for data, source, held_out in (
        (path, f"{path}:test", True),
        (story_file, str(story_file), False),
    ):
        recipe = small(data=str(data), method="svd_llm", ratio=0.3)
        live_request = request(lrcore.prepare(dense, recipe), recipe)
        live.measure(live_request, dense, lambda *_: None)
        figure = live.peek(live_request.key)
        assert figure.error == ""
        assert (figure.protocol["source"], figure.is_held_out) == (source, held_out)
        cell_html = markup.actual_cell(live_request.key, figure)
        assert data.name in cell_html
        assert str(data.parent) not in cell_html  # a narrow cell would show only the folder


def test_the_caption_of_the_bars_names_the_highest_and_the_lowest_rank(factors):
    even = lrcore.allocate(factors, small(ratio=0.3))
    assert uniform_message(even, even) == words.allocation.UNIFORM_BARS
    plan = lrcore.allocate(factors, small(ratio=0.3, rank_overrides={"2.qk": 2, "4.mlp": 688}))
    message = uniform_message(plan, even)
    assert "layer 4 · mlp (100%)" in message
    assert "layer 2 · qk (6%)" in message


def test_each_browser_has_its_own_request(factors):
    live = LiveMeasurements(ObjectCache())
    first, second = (
        request(factors, small(ratio=0.2), "one"),
        request(factors, small(ratio=0.6), "two"),
    )
    live.request(first)
    live.request(second)
    assert (
        wait_for_figure(live, first.key).perplexity < wait_for_figure(live, second.key).perplexity
    )


def test_a_displayed_figure_is_never_evicted(factors, monkeypatch):
    monkeypatch.setattr(live_figures, "MAX_FIGURES", 2)
    live, plans = (
        LiveMeasurements(ObjectCache()),
        [request(factors, small(ratio=r)) for r in (0.2, 0.3, 0.4)],
    )
    for live_request in plans:
        live.measure(live_request, lrcore.load(MODEL), lambda *_: None)
        assert live.peek(plans[0].key) is not None
    assert live.peek(plans[1].key) is None
    assert live.peek(plans[2].key) is not None


def test_a_failed_measurement_has_an_error(factors):
    live, live_request = (
        LiveMeasurements(ObjectCache()),
        request(factors, small(ratio=0.2, data="no-such-text")),
    )
    live.request(live_request)
    assert "no-such-text" in wait_for_figure(live, live_request.key).error


def test_only_short_measurements_start_automatically(factors):
    assert is_affordable(factors, lrcore.Recipe(), has_refit=False)
    assert is_affordable(factors, lrcore.Recipe(method="fused"), has_refit=True)
    assert not is_affordable(factors, lrcore.Recipe(refit="on", samples=4096), has_refit=True)
    runs = [
        tokens_run(lrcore.Recipe(refit=refit), has_refit=True)
        for refit in ("on", "trained", "distilled")
    ]
    assert runs[1] > 2 * runs[0]
    assert runs[2] > runs[1]


def test_the_key_of_a_figure_depends_on_ratio_refit_and_calibration_mode(factors):
    keys = {
        request(factors, small(**changes)).key
        for changes in ({}, {"ratio": 0.5}, {"refit": "on"}, {"calibration_mode": "sequential"})
    }
    assert len(keys) == 4


def test_the_key_of_a_figure_depends_on_the_bits_of_the_plan(factors):
    plan = lrcore.allocate(factors, small())
    rounded = replace(plan, bits={next(iter(plan.ranks)): 4})
    assert figure_key(factors, small(), rounded) != figure_key(factors, small(), plan)


def test_a_prompt_is_continued_by_the_compressed_and_the_dense_model(factors):
    live, live_request = LiveMeasurements(ObjectCache()), request(factors, small(ratio=0.5))
    model = lrcore.load(MODEL)
    compressed = lrcore.compress(model, live_request.recipe, factors)
    for prompt in ("One day", "Tom saw"):
        live.request(replace(live_request, prompt=prompt))
        end = time.monotonic() + PATIENCE
        while live.is_pending("one"):
            assert time.monotonic() < end
            time.sleep(0.02)
        continued = live.continuation(live_request.key, prompt)
        text = "".join(token for token, *_ in continued.tokens)
        assert text == prompt + lrcore.generate(compressed, prompt, continuation.NEW_TOKENS)
        assert (
            continued.tokens[1:]
            == tuple(
                (token, old, new)
                for (token, old), (_, new) in zip(
                    token_losses(model, text),
                    token_losses(compressed, text),
                    strict=True,
                )
            )[1:]
        )  # the first token has no prediction
        dense_text = "".join(token for token, _ in continued.dense)
        assert dense_text == prompt + lrcore.generate(model, prompt, continuation.NEW_TOKENS)
        same = "".join(token for token, *_ in continued.tokens[: continued.first])
        assert dense_text.startswith(same)
        assert continued.tokens[continued.first][0] != continued.dense[continued.first][0]
    assert live.continuation(live_request.key, "") is None


def test_a_prompt_longer_than_the_context_is_reported_and_figures_precede_prompts(factors):
    live = LiveMeasurements(ObjectCache())
    first = replace(request(factors, small(ratio=0.2), "one"), prompt="word " * 2000)
    live.request(first)
    assert wait_for_figure(live, first.key).perplexity
    end = time.monotonic() + PATIENCE
    while live.is_pending("one"):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert "context" in live.continuation(first.key, first.prompt).error
    measured_request = replace(first, prompt="One day", when=0.0)
    new = replace(request(factors, small(ratio=0.25), "two"), when=1.0)
    waiting = LiveMeasurements.__new__(LiveMeasurements)  # without a worker
    waiting._changed, waiting._figures = threading.Condition(), {first.key: live.peek(first.key)}
    waiting._requests = {"one": measured_request, "two": new}
    assert waiting._next() is new
