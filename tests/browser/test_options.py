"""The options of a method: boxes of their kind, and a plan and a recipe that follow."""

import pytest

from .test_curves import shown_ranks

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_options_of_a_method_change_its_plan_and_its_recipe(workbench):
    workbench.allocation()
    choose(workbench, "field-method", "latentllm")
    workbench.page.wait_for_selector("#option-junction", timeout=30_000)
    workbench.until(lambda: plotted(workbench, "joint_qk"), 60, "latentllm is not drawn")
    workbench.until_idle()
    saving = shown_ranks(workbench)
    choose(workbench, "option-junction", "symmetric")
    workbench.until(lambda: workbench.recipe()["options"] == {"junction": "symmetric"}, 10, "the recipe does not hold the option")
    workbench.until(lambda: plotted(workbench, "joint_qk") and shown_ranks(workbench) != saving, 60, "the plan does not follow")
    plain = shown_ranks(workbench)
    assert all(plain[slot] <= saving[slot] for slot in saving)  # without its identity block a rank costs more
    choose(workbench, "field-method", "a3")
    workbench.until(lambda: plotted(workbench, "ov"), 30, "a3 is not drawn again")
    assert workbench.recipe()["options"] == {}


def choose(workbench, elem_id, name):
    workbench.locator(f"#{elem_id} input").click()
    workbench.page.get_by_role("option", name=name, exact=True).click()


def plotted(workbench, name):
    return any(slot[0] == name for slot in shown_ranks(workbench))
