"""The table of a real model: measured figure by figure, with a run that was cut going on."""

import json
import sys
from pathlib import Path

import pytest

import lrcore

SCRIPTS = str(Path(__file__).resolve().parents[1] / "scripts")
sys.path.insert(0, SCRIPTS)
from bench import accuracy, quality  # noqa: E402 (its folder is no package)

sys.path.remove(SCRIPTS)

ITEM = {"question": "Once upon a", "choices": ["time", "dog"], "label": 0}


@pytest.fixture
def reference(monkeypatch, tmp_path, tiny_llama, story_file) -> Path:
    """The benchmark on a tiny model with one method of each kind; gives the folder of the texts."""
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
        "ROWS": (("a3", "uniform"),),
    }
    for name, value in changed.items():
        monkeypatch.setattr(accuracy, name, value)
    monkeypatch.setattr(quality, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(accuracy, "reference_text", lambda only: text)
    return text


def test_every_figure_is_kept_at_once_and_measured_once(reference, monkeypatch) -> None:
    written: dict[str, str] = {}
    monkeypatch.setattr(
        accuracy, "write_section", lambda name, text, page: written.update({page.name: text})
    )
    monkeypatch.setattr(accuracy, "answer", None)
    with pytest.raises(TypeError):
        accuracy.accuracy([])
    assert list(accuracy.known()["dense"]) == ["parameters", "kv_bytes", "WikiText-2"]


def test_the_tables_have_what_was_measured(reference, monkeypatch) -> None:
    written: dict[str, str] = {}
    monkeypatch.setattr(
        accuracy, "write_section", lambda name, text, page: written.update({page.name: text})
    )
    shared: list[str] = []
    factorise = lrcore.factorise
    monkeypatch.setattr(
        lrcore, "factorise", lambda *given: shared.append(given[2]) or factorise(*given)
    )
    accuracy.accuracy([])
    assert shared == ["a3", "care"]  # both ratios of a pairing are timed with the same factors
    known = accuracy.known()
    assert set(known) == {"dense", "a3 uniform 0.3", "a3 uniform 0.4", "care uniform 0.5"}
    cell = known["a3 uniform 0.3"]
    assert cell["parameters"] < known["dense"]["parameters"]
    assert cell["WikiText-2"]["error"] > 0
    assert cell["seconds"] >= 0
    line = f"| a3 | uniform | 30% | {cell['WikiText-2']['perplexity']:.2f} ± "
    assert line in written["README.md"]
    assert line in written["benchmarks.md"]
    assert "| care | uniform | 50% of KV |" in written["README.md"]
    further = "| a3 | uniform | 40% | "
    assert further in written["benchmarks.md"]
    assert further not in written["README.md"]
    assert "| ARC-E |" in written["benchmarks.md"]
    assert "| ARC-E |" not in written["README.md"]
    monkeypatch.setattr(lrcore, "evaluate", None)
    monkeypatch.setattr(lrcore, "compress", None)
    accuracy.accuracy([])  # nothing is measured again
    assert accuracy.known() == known


def test_the_mean_accuracy_has_the_error_of_a_mean() -> None:
    tasks = [{"accuracy": 0.5, "error": 0.03}, {"accuracy": 0.7, "error": 0.04}]
    assert accuracy.percent(tasks) == "60.0 ± 2.5"
