"""Undo and redo of the settings of a page."""

import lrcore
from workbench.state.browsers import BrowserState
from workbench.state.plan_history import MAX_STEPS, PlanHistory

START = lrcore.Recipe()
SVD, HALF = START.with_(method="svd"), START.with_(ratio=0.5)


def recorded(*settings: tuple[lrcore.Recipe, int]) -> PlanHistory:
    history = PlanHistory(START)
    for recipe, gesture in settings:
        history = history.record(recipe, gesture)
    return history


def test_changes_are_undone_and_redone_in_order():
    history = recorded((SVD, 1), (HALF, 2))
    back = history.undo(2).undo(2)
    assert (back.present, back.past, back.future) == (START, (), (SVD, HALF))
    assert back.undo(2) == back
    again = back.redo(2).redo(2)
    assert (again.present, again.past, again.future) == (HALF, (START, SVD), ())
    assert again.redo(2) == again


def test_a_change_after_undo_discards_the_undone_changes():
    history = recorded((SVD, 1)).undo(1).record(HALF, 2)
    assert (history.present, history.past, history.future) == (HALF, (START,), ())


def test_a_gesture_is_one_step():
    ratios = [START.with_(ratio=ratio) for ratio in (0.3, 0.4, 0.5)]
    history = recorded(*((recipe, 7) for recipe in ratios))
    assert history.undo(7).present == START
    assert history.record(SVD, 8).undo(8).present == ratios[-1]


def test_settings_before_the_first_gesture_begin_the_history():
    """A link sets them after the page has opened."""
    assert recorded((SVD, 0)) == PlanHistory(SVD)


def test_late_reports_do_not_change_the_history():
    undone = recorded((SVD, 1), (HALF, 2)).undo(2)
    assert undone.record(HALF, 2) == undone  # reported before the page showed the restored settings
    assert undone.record(HALF, 1) == undone
    assert undone.record(HALF, 3) == undone  # the report of a click beside the plan
    assert undone.record(SVD, 3).record(HALF, 4).past == (START, SVD)


def test_a_click_while_several_steps_are_undone_does_not_stop_them():
    undone = recorded((SVD, 1), (HALF, 2)).undo(2).undo(2)
    assert undone.record(SVD, 3).future == (SVD, HALF)  # reported between the two steps


def test_the_oldest_steps_are_dropped():
    many = [(START.with_(seed=seed), seed) for seed in range(1, MAX_STEPS + 10)]
    history = recorded(*many)
    assert len(history.past) == MAX_STEPS
    assert history.past[-1] == many[-2][0]


def test_each_page_has_a_history():
    browsers = BrowserState()
    browsers.change_history("one", lambda history: history.record(SVD, 1))
    other = browsers.change_history("two", lambda history: history)
    assert other == PlanHistory(START)
    assert browsers.change_history("one", lambda history: history).past == (START,)
