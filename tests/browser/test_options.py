"""The options of a method: their controls, and their effect on plan and recipe."""

import pytest

from .test_selection import click_bar

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_options_of_a_method_change_its_plan_and_its_recipe(workbench):
    workbench.allocation()
    workbench.choose("field-policy", "uniform")
    workbench.open("Options of")
    workbench.choose("field-method", "latentllm")
    workbench.page.wait_for_selector("#option-junction")
    workbench.until(lambda: workbench.plotted("joint_qk"), "latentllm is not drawn")
    workbench.until_idle()
    workbench.answered()
    saving = workbench.ranks()
    workbench.choose("option-junction", "symmetric")
    workbench.until(
        lambda: workbench.recipe()["options"] == {"junction": "symmetric"},
        "the option is not in the recipe",
    )
    workbench.page.wait_for_selector("button.label-wrap:has-text('latentllm: junction symmetric')")
    plain = workbench.until(
        lambda: (ranks := workbench.ranks()) not in ({}, saving) and ranks,
        "the plan does not follow",
    )
    assert all(
        plain[slot] <= saving[slot] for slot in saving
    )  # a rank costs more without the identity block
    workbench.choose("field-method", "a3")
    workbench.until(lambda: workbench.plotted("ov"), "a3 is not drawn again")
    assert workbench.recipe()["options"] == {}


def quiet(workbench) -> bool:
    """Return whether the page sends no requests during three polls. A live figure measured in
    between requests the ranking again.
    """
    workbench.answered()
    request_count = workbench.evaluate("questions.asked")
    workbench.looked(3)
    return workbench.evaluate("questions.asked") == request_count


def test_leaving_an_option_unchanged_sends_no_request(workbench):
    """A dropdown triggers `input` whenever it loses the focus."""
    workbench.allocation()
    workbench.open("Options of")
    workbench.choose("field-method", "latentllm")
    workbench.page.wait_for_selector("#option-junction")
    workbench.answered()  # the box of the previous test may still be there
    workbench.choose("option-junction", "symmetric")
    workbench.until(
        lambda: workbench.plotted("joint_qk") and workbench.recipe()["options"],
        "the option is not in the recipe",
    )
    workbench.until_idle()
    click_bar(workbench, 2, "joint_qk")
    workbench.answered()
    workbench.locator("#bars .handle").press("ArrowDown")
    rank_overrides = workbench.until(
        lambda: workbench.recipe()["rank_overrides"], "the rank is not set by hand"
    )
    pending = workbench.locator("#size-and-cost [data-known='False']")
    workbench.until(lambda: not pending.count(), "the live figures are not measured")
    workbench.looked()  # another live figure requests the ranking again

    for name in ("method", "policy"):
        workbench.locator(f"#field-{name} input").focus()
        workbench.page.keyboard.press("Tab")
    workbench.until(lambda: quiet(workbench), "the page keeps sending requests")
    assert (workbench.recipe()["options"], workbench.recipe()["rank_overrides"]) == (
        {"junction": "symmetric"},
        rank_overrides,
    )


def test_an_example_sets_its_method_and_preserves_model_and_text(workbench):
    workbench.type_into("field-model", "demo-opt")
    workbench.open("Calibration windows")
    workbench.type_into("field-samples", "4")
    workbench.type_into("field-seq_len", "32")
    before = workbench.recipe()
    workbench.click("#sidebar button:has-text('SVD-LLM')")
    after = workbench.until(
        lambda: (recipe := workbench.recipe())["method"] == "svd_llm" and recipe,
        "the form does not have the method of the example",
    )
    changed = {name for name in before if before[name] != after[name]}
    # options, and ranks set by hand, belong to the previous method
    assert changed <= {"method", "policy", "ratio", "options", "rank_overrides"}
    assert (after["model"], after["samples"], after["seq_len"]) == ("demo-opt", 4, 32)
    workbench.until_idle()
