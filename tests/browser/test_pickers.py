"""The lists of methods and policies."""

import pytest

from workbench import words

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OPTIONS = """(id) => [...document.querySelectorAll(`#${id} [role=option]`)].map((option) => ({
  name: option.getAttribute('aria-label'), group: option.dataset.group,
  about: option.getAttribute('aria-description') }))"""


def options(workbench, elem_id):
    """Open a list and return its entries."""
    box = workbench.locator(f"#{elem_id} input")
    box.blur()
    box.click()
    workbench.page.locator(f"#{elem_id} [role=option][aria-description]").first.wait_for()
    return workbench.evaluate(OPTIONS, elem_id)


def test_entries_have_a_description_and_their_measurement(workbench):
    workbench.allocation()
    workbench.until(
        lambda: any("Measured" in row["about"] for row in options(workbench, "field-policy")),
        "no entry has a measurement",
    )
    rows = {row["name"]: row for row in options(workbench, "field-policy")}
    assert "Measured with a3: perplexity" in rows["uniform"]["about"]
    summaries = words.pickers.summaries("policy")
    assert all(row["about"].startswith(summaries[name]) for name, row in rows.items())
    groups = [name for name, row in rows.items() if row["group"] == words.pickers.MORE]
    assert groups == [[*rows][5]]
