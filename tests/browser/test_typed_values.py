"""Values typed below the bars: ratios by component, rank multiples, and ranks in the table."""

import pytest

from workbench.tabs.allocation.ranks_table import COLUMNS, EDITABLE

from .conftest import pages

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ERROR_NOTE = "#size-and-cost .note.error"
RANK = COLUMNS.index(EDITABLE)


@pytest.fixture(scope="module")
def folded(browser, server):
    with pages(browser, server.url) as open_workbench:
        workbench = open_workbench("?tab=Allocation&policy=uniform", ready=False)
        workbench.allocation()
        workbench.open("Ranks by layer")
        workbench.page.wait_for_selector("#ranks-table [role=gridcell]")
        workbench.answered()
        yield workbench


def wait_for_error(workbench, words: str) -> None:
    """Wait until the page reports an error with these words."""
    workbench.until(
        lambda: words in " ".join(workbench.locator(ERROR_NOTE).all_inner_texts()),
        f"no error with {words}",
    )
    assert "Traceback" not in workbench.locator("body").inner_text()


def type_value(workbench, elem_id: str, value: str) -> None:
    box = workbench.locator(f"#{elem_id} input, #{elem_id} textarea").first
    box.fill(value)
    box.press("Tab")
    workbench.answered()


@pytest.mark.parametrize(
    ("value", "words"),
    [("qk", "is not a list of ratios"), ("banana=0.3", "banana"), ("qk=5", "between 0 and 1")],
)
def test_invalid_component_ratios_are_reported_and_valid_ones_are_used(folded, value, words):
    before = folded.ranks()
    type_value(folded, "field-component_ratios", value)
    wait_for_error(folded, words)
    type_value(folded, "field-component_ratios", "qk=0.6")
    folded.until(lambda: not folded.locator(ERROR_NOTE).count(), "the error is still reported")
    assert folded.recipe()["component_ratios"] == {"qk": 0.6}
    narrower = folded.until(
        lambda: (ranks := folded.ranks()) != before and ranks, "the plan does not follow"
    )
    assert all(rank < before[slot] for slot, rank in narrower.items() if slot[0] == "qk")
    type_value(folded, "field-component_ratios", "")
    folded.until(lambda: folded.ranks() == before, "the plan is not restored")


@pytest.mark.parametrize("value", ["0", "-8"])
def test_invalid_multiples_are_reported_and_valid_ones_are_used(folded, value):
    type_value(folded, "field-rank_multiple", value)
    wait_for_error(folded, "rank_multiple")
    type_value(folded, "field-rank_multiple", "8")
    folded.until(
        lambda: (ranks := folded.ranks()) and all(rank % 8 == 0 for rank in ranks.values()),
        "a rank is not a multiple of 8",
    )
    assert folded.locator(ERROR_NOTE).count() == 0
    type_value(folded, "field-rank_multiple", "1")
    folded.answered()


def cell(workbench):
    """Return the rank cell of the first row of the table."""
    row = workbench.locator("#ranks-table [role=row]").nth(1)
    return row.locator("[role=gridcell]").nth(RANK)


def cell_text(workbench) -> str:
    """Return the text of the cell without the menu icon of a selected cell."""
    words = cell(workbench).inner_text().split()
    return words[0] if words else ""


def test_a_valid_rank_typed_into_the_table_is_set_and_an_invalid_one_is_refused(folded):
    rank = int(cell_text(folded))
    for value in ("many", "2.5", "99999", str(rank - 2)):
        cell(folded).dblclick()
        folded.page.keyboard.press("Control+a")
        folded.page.keyboard.type(value)
        folded.page.keyboard.press("Enter")
        folded.answered()
        if value == str(rank - 2):
            break
        folded.locator(".toast-body").first.wait_for()
        folded.until(lambda: cell_text(folded) == str(rank), f"{value} remains in the table")
        assert folded.recipe()["rank_overrides"] == {}
        folded.locator(".toast-close").first.click()
    folded.until(lambda: folded.recipe()["rank_overrides"], "the rank is not set by hand")
    assert [*folded.recipe()["rank_overrides"].values()] == [rank - 2]
    folded.click("#undo")
    folded.until(lambda: not folded.recipe()["rank_overrides"], "the step is not undone")


def test_too_many_windows_are_refused_before_a_job_starts(folded):
    folded.open("Calibration windows")
    before = folded.value("field-samples")
    folded.type_into("field-samples", "1000000000")
    folded.click("#analyse")
    toast = folded.locator(".toast-body").first
    toast.wait_for()
    assert "1,000,000,000 windows" in toast.inner_text()
    folded.looked()
    assert not folded.evaluate("tests.busy()")
    folded.type_into("field-samples", before)
