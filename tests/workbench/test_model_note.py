"""The note on dequantized models, and the list of models."""

import pytest
from gguf_files import write_gguf

import lrcore
from lrcore.models.load import DEMO_MODELS, built_in_models
from workbench import words
from workbench.state.store import Store
from workbench.widgets import form, polling
from workbench.widgets.form import choices, input_values

NOTE = "Dequantized from 8 bits (Q8_0, F32)"


def test_dequantization_is_noted_below_the_model_and_in_protocols(tiny_llama, tmp_path):
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    path = write_gguf(tiny_llama, tmp_path / "tiny.gguf", "Q8_0")
    store, recipe = Store(tmp_path / "runs"), lrcore.Recipe(str(path))
    assert not any(NOTE in str(part) for part in polling.state(store, input_values(recipe)))
    model = store.dense(recipe)
    (note,) = [part for part in polling.state(store, input_values(recipe)) if NOTE in str(part)]
    assert note.startswith("<div class='note")
    for protocol in ("windows", "strided"):
        settings = {"samples": 1, "seq_len": 32, "protocol": protocol}
        measured = lrcore.evaluate(model, "stories", **settings).protocol
        assert words.compare_and_runs.protocol(measured).endswith(NOTE)


def test_the_list_has_all_available_models():
    listed = [value for _, value in choices()["model"].choices]
    assert tuple(listed) == built_in_models()
    assert set(DEMO_MODELS) <= set(listed)


def test_published_models_are_labeled_in_the_list(monkeypatch):
    monkeypatch.setattr(form, "built_in_models", lambda: ("demo-llama", "smollm2-135m"))
    assert choices()["model"].choices == [
        ("demo-llama", "demo-llama"),
        ("smollm2-135m · published", "smollm2-135m"),
    ]
