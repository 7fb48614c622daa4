"""A run leaves the house: its ranks are put so that a stock architecture has them, and the folder is written."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def make(workbench, name: str) -> None:
    """Compress by the form, and open the run."""
    workbench.start(name, samples=2)
    workbench.tab("Runs & export")
    row = workbench.page.locator("#runs-table [role=gridcell]", has_text=name).first
    row.wait_for(timeout=90_000)
    row.click()
    workbench.until(lambda: name in workbench.value("run-rename-name"), 20, "the run is not opened")


def test_a_run_that_no_stock_architecture_has_is_made_into_one_that_is_exported(workbench):
    make(workbench, "uneven")
    said = workbench.locator("#stock-fit")
    workbench.until(lambda: "No stock architecture" in said.inner_text() and "neurons in every MLP" in said.inner_text(), 10, "no reason")
    assert workbench.locator("#export-stock input").is_disabled()
    workbench.click("#stock-ranks")
    workbench.until(lambda: set(workbench.recipe()["overrides"]) >= {"0.qk", "0.mlp"}, 20, "the form does not have the ranks")

    make(workbench, "stock one")
    workbench.until(lambda: "fit a stock architecture" in said.inner_text(), 10, "the ranks do not fit")
    workbench.locator("#export-stock input").check()
    workbench.click("#export")
    folder = workbench.until(lambda: workbench.value("exported"), 60, "nothing is exported")
    assert not list(Path(folder).glob("*.py"))
    assert (Path(folder) / "README.md").read_text().count("stock one") >= 1
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.model_type == "llama"
