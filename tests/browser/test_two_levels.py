"""The main controls of a tab, and its fold of expert settings."""

import pytest

from workbench import words

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FOLD = "#expert-allocation > button.label-wrap"
EXPERT = ("#field-method", "#field-policy", "#slot-row", "#pin", "#network", "#policies")


def visible_expert_parts(workbench) -> set[str]:
    """Return the expert parts of the Allocation tab that are visible."""
    return {name for name in EXPERT if workbench.locator(name).is_visible()}


def test_the_keyboard_opens_and_closes_the_expert_settings(workbench):
    workbench.tab("Allocation", expert=False)
    workbench.locator(FOLD).wait_for()
    workbench.answered()
    assert visible_expert_parts(workbench) == set()
    workbench.locator(FOLD).press("Enter")
    workbench.until(lambda: visible_expert_parts(workbench) == {*EXPERT}, "the fold does not open")
    workbench.locator(FOLD).press("Enter")
    workbench.until(lambda: not visible_expert_parts(workbench), "the fold does not close")


def test_an_infeasible_plan_opens_the_expert_settings(workbench):
    workbench.tab("Allocation", expert=False)
    workbench.set_range("field-ratio", 0.99)
    workbench.locator("#size-and-cost .note.error").wait_for()
    workbench.locator("#field-method").wait_for()
    workbench.at_ratio(0.2)


def test_a_message_about_a_folded_control_opens_its_fold(workbench):
    workbench.tab("Compress")
    workbench.type_into("measure-samples", "-1")
    workbench.locator("#expert-compress > button.label-wrap").click()
    samples = workbench.locator("#measure-samples")
    workbench.until(lambda: not samples.is_visible(), "the fold does not close")
    workbench.click("#start")
    samples.wait_for()
    workbench.type_into("measure-samples", "4")


def test_the_compress_button_of_allocation_starts_a_run(workbench):
    workbench.tab("Allocation", expert=False)
    workbench.click("#compress")
    workbench.until(
        lambda: workbench.open_tab() == words.compress.COMPRESS_TAB, "the jobs are not shown"
    )
    workbench.page.wait_for_selector(".job.done", state="attached")


def test_a_link_to_an_expert_setting_opens_the_fold(open_page):
    workbench = open_page("?tab=Allocation&policy=energy", ready=False)
    workbench.locator("#field-policy").wait_for()
    assert workbench.value("field-policy") == "energy"
