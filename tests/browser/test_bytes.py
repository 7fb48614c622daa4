"""A budget of bytes: ranks and bits chosen together, on the page and in a run."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True

RATIO = 0.75  # of 20.6 MB in float32; embeddings stay as they are
MOST_MEGABYTES = 0.25 * 20.6


def test_a_budget_of_bytes_shows_its_bits_and_becomes_a_run(open_page):
    workbench = open_page("?tab=Allocation&ratio=0.75")
    workbench.tab("Allocation", expert=False)
    workbench.wait_for_plot("bars")
    workbench.choose("field-budget", "bytes of the model, by ranks and bits")
    foot = workbench.locator("#bars-caption")
    workbench.until(lambda: " below full rank" in foot.inner_text(), "no bits are named")
    workbench.answered()
    recipe = workbench.recipe()
    assert (recipe["budget"], recipe["policy"]) == ("bytes", "probed")
    plot = workbench.plot("bars")
    named = {trace["name"] for trace in plot["traces"]}
    assert len(named & {"4 bits", "3 bits", "2 bits"}) > 1
    assert not workbench.locator("#bars .handle").is_visible()
    workbench.see("#budget-curve")
    workbench.wait_for_plot("budget-curve")
    assert "MB" in workbench.locator("#budget-curve .js-plotly-plot").inner_text()
    workbench.tab("Compress", expert=False)
    told = workbench.locator("#what-happens")
    workbench.until(lambda: " below full rank" in told.inner_text(), "the summary has no bits")
    workbench.click("#start")
    workbench.until_idle()
    workbench.tab("Compare", expert=False)
    workbench.until(lambda: "MB" in workbench.locator("#headline").inner_text(), "no size")
    size = workbench.evaluate(
        "[...document.querySelectorAll('#headline *')].map((e) => e.textContent)"
        ".filter((t) => /^[\\d.]+ MB$/.test(t)).pop()"
    )
    assert float(size.split()[0]) <= MOST_MEGABYTES
    workbench.tab("Runs & export", expert=False)
    listed = workbench.locator("#runs-table [role=row]", has_text=size)
    workbench.until(lambda: listed.count() > 0, "the table of runs has another size")
