"""A hybrid on the page: the matrices of its convolution, and its state beside the KV cache."""

import pytest
from tiny_models import family_folder

import lrcore
from workbench.words import allocation

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True  # the queue is idle


def test_a_hybrid_is_analyzed_and_compressed(server, open_page, tiny_llama, story_file, tmp_path):
    folder = family_folder("lfm2", tiny_llama, tmp_path / "lfm2")
    workbench = open_page()
    workbench.type_into("field-model", str(folder))
    workbench.type_into("field-data", str(story_file))
    workbench.open("Calibration windows")
    workbench.type_into("field-samples", "4")
    workbench.type_into("field-seq_len", "16")
    workbench.click("#analyse")
    workbench.until_idle()
    workbench.allocation()
    workbench.choose("field-method", "svd_llm")
    cells = workbench.locator("#size-and-cost .cells").first
    workbench.until(lambda: allocation.STATES in cells.inner_text(), "the state is not counted")
    workbench.start("small", samples=2, seq_len=16)
    workbench.until_idle()
    workbench.open_run("small")
    model = lrcore.load(str(lrcore.Runs(server.folder / "runs").find("small").checkpoint))
    assert {rank.component for rank in model.ranks} >= {"in", "o", "q", "k", "down"}
