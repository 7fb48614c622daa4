"""Values typed below the bars: ratios by component, multiples, ranks in their table."""

import pytest

from workbench.tabs.allocation.ranks_table import COLUMNS, EDITABLE

from .conftest import pages

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SAID = "#size-and-cost .note.error"
RANK = COLUMNS.index(EDITABLE)


@pytest.fixture(scope="module")
def folded(browser, server):
    with pages(browser, server.url) as open_one:
        workbench = open_one("?tab=Allocation&policy=uniform", ready=False)
        workbench.allocation()
        workbench.open("Ranks by layer")
        workbench.page.wait_for_selector("#ranks-table [role=gridcell]")
        workbench.answered()
        yield workbench


def wait_for_words(workbench, words: str) -> None:
    """Wait until the page answers with words; the ranks on show stay, and say that they are old."""
    workbench.until(
        lambda: words in " ".join(workbench.locator(SAID).all_inner_texts()), f"no word of {words}"
    )
    assert "Traceback" not in workbench.locator("body").inner_text()


def typed(workbench, elem_id: str, value: str) -> None:
    box = workbench.locator(f"#{elem_id} input, #{elem_id} textarea").first
    box.fill(value)
    box.press("Tab")
    workbench.answered()


@pytest.mark.parametrize(
    ("value", "words"),
    [("qk", "is not a list of ratios"), ("banana=0.3", "banana"), ("qk=5", "between 0 and 1")],
)
def test_ratios_by_component_that_are_none_are_said_and_others_followed(folded, value, words):
    before = folded.ranks()
    typed(folded, "field-component_ratios", value)
    wait_for_words(folded, words)
    typed(folded, "field-component_ratios", "qk=0.6")
    folded.until(lambda: not folded.locator(SAID).count(), "it is said still")
    assert folded.recipe()["component_ratios"] == {"qk": 0.6}
    narrower = folded.until(
        lambda: (ranks := folded.ranks()) != before and ranks, "the plan does not follow"
    )
    assert all(rank < before[slot] for slot, rank in narrower.items() if slot[0] == "qk")
    typed(folded, "field-component_ratios", "")
    folded.until(lambda: folded.ranks() == before, "the plan does not come back")


@pytest.mark.parametrize("value", ["0", "-8"])
def test_multiples_that_are_none_are_said_and_others_followed(folded, value):
    typed(folded, "field-rank_multiple", value)
    wait_for_words(folded, "rank_multiple")
    typed(folded, "field-rank_multiple", "8")
    folded.until(
        lambda: (ranks := folded.ranks()) and all(rank % 8 == 0 for rank in ranks.values()),
        "ranks are no multiples of 8",
    )
    assert folded.locator(SAID).count() == 0
    typed(folded, "field-rank_multiple", "1")
    folded.answered()


def cell(workbench):
    """The rank of the first row of the table."""
    row = workbench.locator("#ranks-table [role=row]").nth(1)
    return row.locator("[role=gridcell]").nth(RANK)


def cell_text(workbench) -> str:
    """What it shows, without the sign of a menu that a selected cell has."""
    words = cell(workbench).inner_text().split()
    return words[0] if words else ""


def test_a_rank_typed_into_the_table_is_set_by_hand_and_what_is_none_is_refused(folded):
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
        folded.until(lambda: cell_text(folded) == str(rank), f"{value} stays in the table")
        assert folded.recipe()["rank_overrides"] == {}
        folded.locator(".toast-close").first.click()
    folded.until(lambda: folded.recipe()["rank_overrides"], "the rank is not set by hand")
    assert [*folded.recipe()["rank_overrides"].values()] == [rank - 2]
    folded.click("#undo")
    folded.until(lambda: not folded.recipe()["rank_overrides"], "the step is not undone")


def test_more_windows_than_can_work_are_refused_before_anything_runs(folded):
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
