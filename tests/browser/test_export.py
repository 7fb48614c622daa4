"""Export of a run, after its ranks are changed so that they fit a standard architecture."""

import re
from html import unescape
from pathlib import Path
from zipfile import ZipFile

import pytest
from transformers import AutoModelForCausalLM

from workbench import words

from .test_accessibility import press_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True


def make(workbench, name: str) -> None:
    """Compress a model on the page, and open the run."""
    workbench.start(name, samples=2)
    workbench.open_run(name)
    workbench.until(lambda: workbench.value("run-rename-name") == name, "its name is not shown")


def test_a_run_is_fitted_to_a_standard_architecture_and_exported(workbench, tmp_path):
    workbench.allocation()
    workbench.choose("field-policy", "marginal")
    make(workbench, "uneven")
    message = workbench.locator("#stock-fit")
    workbench.until(
        lambda: (
            "Not loadable as a standard architecture" in message.inner_text()
            and "uniform MLP width" in message.inner_text()
        ),
        "the reason is not shown",
    )
    assert workbench.value("export-format") == words.compare_and_runs.FORMATS["transformers"]
    workbench.click("#stock-ranks")
    workbench.until(
        lambda: set(workbench.recipe()["rank_overrides"]) >= {"0.qk", "0.mlp"},
        "the ranks are not in the form",
    )

    make(workbench, "stock one")
    workbench.until(
        lambda: "fit a standard architecture" in message.inner_text(), "the ranks do not fit"
    )
    workbench.answered()
    workbench.choose("export-format", words.compare_and_runs.FORMATS["transformers-stock"])
    workbench.click("#export")
    folder = workbench.until(lambda: workbench.value("exported"), "nothing is exported")
    assert not list(Path(folder).glob("*.py"))
    assert (Path(folder) / "README.md").read_text().count("stock one") >= 1
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.model_type == "llama"
    workbench.locator("#export-download").wait_for()
    workbench.answered()
    with workbench.page.expect_download() as waiting:
        workbench.page.click("#export-download")
    assert waiting.value.suggested_filename == "stock-one.zip"
    with ZipFile(waiting.value.path()) as archive:
        archive.extractall(tmp_path)
    for file in Path(folder).iterdir():
        assert (tmp_path / "stock-one" / file.name).read_bytes() == file.read_bytes()


def test_the_run_is_quantized_and_compared(workbench):
    workbench.open("Quantize")
    workbench.choose("quantise-bits", "4")
    workbench.click("#quantise")
    workbench.page.locator(
        "#runs-table [role=gridcell]", has_text="stock one · 4 bit"
    ).first.wait_for()
    workbench.until_idle()
    workbench.tab("Compare")
    workbench.answered()
    workbench.choose_all("compare-runs", ["stock one · 4 bit"])
    cards = workbench.locator("#compared")
    workbench.until(
        lambda: (
            "stock one · 4 bit" in (words := cards.inner_text()) and "not measured" not in words
        ),
        "the measured card is not shown",
    )
    workbench.click("#generate")
    workbench.until(lambda: len(workbench.answer(1)) > 80, "nothing is generated")
    workbench.answered()
    report = unescape(re.sub("</?mark>", "", workbench.download("comparison-report")))
    assert "stock one · 4 bit" in report
    prompt = workbench.value("prompt")
    for column in range(2):
        assert workbench.answer(column).removeprefix(prompt) in report


def test_the_run_is_healed_and_shows_the_training_curve(workbench):
    workbench.open_run("uneven")
    workbench.open("Heal")
    workbench.type_into("heal-channel", "8")
    workbench.type_into("heal-steps", "2")
    workbench.click("#heal")
    workbench.until(
        lambda: "latent" in workbench.status()["text"],
        "a channel without latents is not refused",
    )
    workbench.type_into("heal-channel", "0")
    workbench.click("#heal")
    workbench.open_run("uneven · healed")
    workbench.until(
        lambda: "Healed for 2 steps on stories" in workbench.locator("#run-heading").inner_text(),
        "the healing is not described",
    )
    curves = workbench.locator("#run-heading .curve, .job.done .curve")
    assert curves.count() == 2  # in the run and in its job
    for caption in curves.locator("figcaption").all_inner_texts():
        assert re.match(r"\d\.\d{3} → \d\.\d{3} cross-entropy at each step", caption)
        assert caption.endswith("2 steps")
    assert len(curves.first.locator("polyline").get_attribute("points").split()) == 2


@pytest.mark.soak
def test_layers_are_pruned_and_the_stream_is_sliced_with_the_keyboard(
    workbench,
):
    keys, page = workbench.page.keyboard, workbench.page
    workbench.tab("Experiments")
    page.get_by_role("button", name="Prune layers, slice").focus()
    keys.press("Enter")
    workbench.until(
        lambda: workbench.plot("influence")["traces"], "the layers' influence is not drawn"
    )
    workbench.answered()
    press_until(workbench, "Tab", "#drop-layers input[type=range]")
    keys.press("ArrowRight")
    caption = workbench.locator("#drop-caption")
    workbench.until(lambda: "Layers " in caption.inner_text(), "the second layer is not named")

    def dropped() -> dict | None:
        traces = {trace["name"]: trace["y"] for trace in workbench.plot("influence")["traces"]}
        return traces if len(traces.get("would be dropped", [])) == 2 else None

    traces = workbench.until(dropped, "the second layer is not marked")
    assert max(traces["would be dropped"]) <= min(traces["stay"])
    press_until(workbench, "Tab", "#drop-name input, #drop-name textarea")
    keys.type("two fewer")
    press_until(workbench, "Tab", "#drop")
    keys.press("Enter")
    workbench.answered()
    press_until(workbench, "Tab", "#slice-ratio input[type=range]")
    caption = workbench.locator("#slice-caption")
    before = workbench.until(caption.inner_text, "the width is not described")
    keys.press("ArrowRight")
    workbench.until(
        lambda: caption.inner_text() not in ("", before), "the width does not follow the keys"
    )
    press_until(workbench, "Tab", "#slice")
    keys.press("Enter")
    workbench.tab("Compress")
    page.wait_for_selector(".job.done >> text=Drop 2 layers")
    page.wait_for_selector(".job.done >> text=Slice demo-llama")
    workbench.tab("Runs & export")
    row = page.locator("#runs-table [role=row]", has_text="two fewer").first
    workbench.until(
        lambda: "prune-layers" in row.inner_text(), "the table does not name the method"
    )
    workbench.open_run("two fewer")
    workbench.until(
        lambda: "pruned in this order" in workbench.locator("#run-heading").inner_text(),
        "the run does not list the dropped layers",
    )
    workbench.tab("Compare")
    workbench.until(
        lambda: {"prune-layers", "slice"} <= {*methods_drawn(workbench)},
        "the runs are not in the chart",
    )


def methods_drawn(workbench) -> list[str]:
    return [t["name"].partition(" · ")[0] for t in workbench.plot("scatter")["traces"]]
