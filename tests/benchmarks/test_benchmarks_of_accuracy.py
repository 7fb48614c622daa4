"""The table of SmolLM2-135M: figures are recorded separately, and an interrupted run continues."""

import json
from pathlib import Path

import pytest

import lrcore
from benchmarks import accuracy, record

ITEM = {"question": "Once upon a", "choices": ["time", "dog"], "label": 0}


@pytest.fixture
def reference(monkeypatch, tmp_path, tiny_llama, story_file) -> Path:
    """Configure the benchmark with a tiny model and one method of each kind; return the text
    folder.
    """
    text, tasks = tmp_path / "text", tmp_path / "tasks"
    text.mkdir()
    tasks.mkdir()
    for name in ("wikitext2.train.txt", "wikitext2.test.txt"):
        (text / name).write_text(story_file.read_text("utf-8"), "utf-8")
    lines = "".join(f"{json.dumps(ITEM)}\n" for _ in range(3))
    for name in accuracy.TASKS.values():
        (tasks / name).write_text(lines, "utf-8")
    changed = {
        "MODEL": str(tiny_llama),
        "RATIOS": (0.3, 0.4),
        "SAMPLES": 2,
        "LENGTH": 16,
        "TEXTS": {"WikiText-2": ("wikitext2.test.txt", 3, "gptq-2048")},
        "PAIRINGS": (("a3", "uniform"),),
        "DISTILLED": ("a3", "uniform"),
    }
    for name, value in changed.items():
        monkeypatch.setattr(accuracy, name, value)
    monkeypatch.setattr(record, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(accuracy, "reference_text", lambda models: text)
    return text


def test_figures_are_recorded_as_soon_as_they_are_measured(reference, monkeypatch) -> None:
    written: dict[str, str] = {}
    monkeypatch.setattr(
        accuracy,
        "write_section",
        lambda name, text, page=None: written.update({page.name if page else "tasks.md": text}),
    )
    monkeypatch.setattr(accuracy, "measure_task", None)
    with pytest.raises(TypeError):
        accuracy.accuracy([])
    figures = {"parameters", "kv_bytes", "WikiText-2"}
    assert set(accuracy.recorded()["dense"]) == {*figures, "measured"}


def test_tables_contain_the_measured_figures(reference, monkeypatch) -> None:
    written: dict[str, str] = {}
    monkeypatch.setattr(
        accuracy,
        "write_section",
        lambda name, text, page=None: written.update({page.name if page else "tasks.md": text}),
    )
    factorized: list[str] = []
    factorize = lrcore.factorize
    monkeypatch.setattr(
        lrcore,
        "factorize",
        lambda *arguments: factorized.append(arguments[2]) or factorize(*arguments),
    )
    accuracy.accuracy([])
    assert factorized == ["a3", "care"]  # the ratios of a pairing share factors
    recorded = accuracy.recorded()
    rows = ("a3 uniform 0.3 auto", "a3 uniform 0.3", "a3 uniform 0.4 auto", "a3 uniform 0.4")
    assert set(recorded) == {"dense", *rows, "care uniform 0.5"}
    cell = recorded["a3 uniform 0.3"]
    assert cell["parameters"] < recorded["dense"]["parameters"]
    assert cell["WikiText-2"]["error"] > 0
    assert cell["seconds"] >= 0
    line = f"| a3, `refit: on` | uniform | 30% | {cell['WikiText-2']['perplexity']:.2f} ± "
    assert line in written["README.md"]
    assert line in written["tasks.md"]
    assert "| a3 | uniform | 30% |" in written["README.md"]  # by default
    assert "| care | uniform | 50% of KV |" in written["README.md"]
    second_ratio = "| a3, `refit: on` | uniform | 40% | "
    assert second_ratio in written["tasks.md"]
    assert second_ratio not in written["README.md"]
    assert "| ARC-E |" in written["tasks.md"]
    assert "| ARC-E |" not in written["README.md"]
    monkeypatch.setattr(lrcore, "evaluate", None)
    monkeypatch.setattr(lrcore, "compress", None)
    accuracy.accuracy([])  # measures no figure
    assert accuracy.recorded() == recorded


def test_the_mean_accuracy_has_the_error_of_a_mean() -> None:
    tasks = [{"accuracy": 0.5, "error": 0.03}, {"accuracy": 0.7, "error": 0.04}]
    assert accuracy.percent(tasks) == "60.0 ± 2.5"
