"""Undo and redo of every change of the plan."""

import pytest

from .test_selection import click_bar

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FOLD = "#expert-allocation > button.label-wrap"
# Records the texts of all messages. Gradio adds "(2)" to a message that it shows twice.
RECORD_MESSAGES = """() => {
  window.messages = new Set();
  const read = () => document.querySelectorAll('.toast-body')
    .forEach((message) => window.messages.add(message.innerText));
  new MutationObserver(read).observe(document.body, {subtree: true, childList: true});
}"""


def plan_keys(workbench) -> set[str]:
    """Return the keys of the plans whose figures are on the page."""
    cells = workbench.locator("#size-and-cost [data-plan]").all()
    return {cell.get_attribute("data-plan") for cell in cells}


def settings(workbench) -> dict:
    """Return the settings of the page that differ between its plans."""
    recipe = workbench.recipe()
    names = ("method", "policy", "ratio", "budget", "options", "rank_overrides", "rounding")
    return {name: recipe[name] for name in names}


def becomes(workbench, expected: dict, why: str) -> None:
    """Wait until the page has the settings; the message of a failure says what differs."""
    try:
        workbench.until(lambda: settings(workbench) == expected, why)
    except AssertionError as error:
        differing = {
            name: (value, expected[name])
            for name, value in settings(workbench).items()
            if value != expected[name]
        }
        raise AssertionError(f"{why}: {differing}") from error
    workbench.answered()


def recorded(workbench) -> None:
    """Wait until the last change can be undone."""
    workbench.locator("#undo:not([disabled])").wait_for(state="attached")
    workbench.answered()


def drag_slider(workbench, *shares: float) -> None:
    """Drag the size to parts of the slider's length, and rest at each of them."""
    mouse, slider = workbench.page.mouse, workbench.locator("#field-ratio input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    y = box["y"] + box["height"] / 2
    start = float(slider.input_value()) * box["width"]
    mouse.move(box["x"] + start, y)
    mouse.down()
    for share in shares:
        former = slider.input_value()
        mouse.move(box["x"] + share * box["width"], y, steps=4)
        workbench.until(lambda old=former: slider.input_value() != old, "the slider stays")
        workbench.shows_ratio(float(slider.input_value()))
        workbench.page.wait_for_timeout(400)  # a pause in the drag, not a wait
    mouse.up()
    workbench.answered()


def test_a_new_method_and_the_ranks_that_it_removes_are_undone_and_redone(open_page):
    workbench = open_page("?tab=Allocation&ratio=0.3")
    click_bar(workbench, 2, "qk")
    workbench.locator("#bars .handle").press("ArrowDown")
    recorded(workbench)
    by_hand = workbench.until(
        lambda: (now := settings(workbench))["rank_overrides"] and now, "no rank is set by hand"
    )
    ranks, keys = workbench.ranks(), plan_keys(workbench)
    assert keys
    workbench.choose("field-method", "latentllm")
    workbench.until(lambda: workbench.plotted("joint_qk"), "the plan of latentllm is not drawn")
    workbench.answered()
    workbench.open("Options of")
    workbench.choose("option-junction", "symmetric")
    changed = workbench.until(
        lambda: (now := settings(workbench))["options"] and now, "the option is not set"
    )
    assert (changed["method"], changed["rank_overrides"]) == ("latentllm", {})
    workbench.click("#undo:not([disabled])")
    becomes(workbench, changed | {"options": {}}, "the option is not undone")
    workbench.click("#undo:not([disabled])")
    becomes(workbench, by_hand, "the method and its ranks are not restored")
    workbench.until(lambda: workbench.ranks() == ranks, "the bars are not restored")
    workbench.until(lambda: plan_keys(workbench) == keys, "the plan has another key")
    for _ in range(2):
        workbench.evaluate("document.activeElement.blur()")
        workbench.page.keyboard.press("Control+Shift+Z")
    becomes(workbench, changed, "the changes are not redone")
    workbench.until_idle()


def test_a_new_method_says_once_that_manual_ranks_are_put_aside(open_page):
    workbench = open_page("?tab=Allocation&ratio=0.3")
    click_bar(workbench, 2, "qk")
    workbench.locator("#bars .handle").press("ArrowDown")
    recorded(workbench)
    workbench.evaluate(RECORD_MESSAGES)
    workbench.choose("field-method", "modegpt")
    about_ranks = "[...window.messages].filter((text) => text.includes('manual ranks'))"
    workbench.until(lambda: workbench.evaluate(about_ranks), "no message is shown")
    workbench.answered()
    messages = workbench.evaluate(about_ranks)
    assert not any("(2)" in text for text in messages)
    workbench.until_idle()


def test_a_drag_of_the_slider_is_one_step_on_the_main_path(open_page):
    workbench = open_page("?tab=Allocation&ratio=0.2")
    workbench.tab("Allocation", expert=False)
    workbench.wait_for_plot("bars")
    workbench.shows_ratio(0.2)
    before, keys = settings(workbench), plan_keys(workbench)
    assert keys
    drag_slider(workbench, 0.5, 0.7, 0.4)
    recorded(workbench)
    dragged = settings(workbench)
    assert dragged["ratio"] != before["ratio"]
    workbench.locator("#field-ratio input[type=range]").focus()
    workbench.page.keyboard.press("Control+z")
    becomes(workbench, before, "the drag is not one step")
    workbench.shows_ratio(0.2)
    assert plan_keys(workbench) == keys
    assert workbench.locator("#undo").is_disabled()
    workbench.page.keyboard.press("Control+k")
    workbench.page.keyboard.type("redo")
    workbench.page.keyboard.press("Enter")
    becomes(workbench, dragged, "the palette does not redo")


def three_changes(workbench) -> list[dict]:
    """Change rounding, method and ratio in the expert form. Return the settings before and after
    each change.
    """
    workbench.allocation()
    workbench.open("Ranks by layer")
    steps = [settings(workbench)]
    for change in (
        lambda: workbench.choose("field-rounding", "nearest"),
        lambda: workbench.click("#sidebar button:has-text('SVD-LLM')"),
        lambda: workbench.at_ratio(0.4),
    ):
        change()
        now = workbench.until(
            lambda: (now := settings(workbench)) != steps[-1] and now, "nothing changes"
        )
        recorded(workbench)
        steps.append(now)
    return steps


@pytest.mark.soak  # one of fifty runs on a busy machine stops a step short
def test_three_quick_presses_of_the_keys_are_three_steps(open_page):
    workbench = open_page("?tab=Allocation&ratio=0.2")
    steps = three_changes(workbench)
    workbench.evaluate("document.activeElement.blur()")
    for _ in range(3):
        workbench.page.keyboard.press("Control+z")
    becomes(workbench, steps[0], "three presses are not three steps")
    workbench.until_idle()


def test_each_press_of_the_keys_is_a_step_except_in_a_field_with_text(open_page):
    workbench = open_page("?tab=Allocation&ratio=0.2")
    steps = three_changes(workbench)
    box = workbench.locator("#field-component_ratios :is(input, textarea)")
    box.focus()
    workbench.page.keyboard.press("Control+z")
    workbench.answered()
    assert settings(workbench) == steps[-1]
    box.blur()
    for step in reversed(steps[:-1]):
        workbench.page.keyboard.press("Control+z")
        becomes(workbench, step, "a press is not a step")
    workbench.evaluate("document.activeElement.blur()")
    workbench.page.keyboard.press("Control+Shift+Z")
    becomes(workbench, steps[1], "the first change is not redone")
    workbench.until_idle()
