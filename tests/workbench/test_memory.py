"""The memory estimate of the Compress tab."""

import lrcore
from lrcore.system.hardware import Hardware
from workbench.views import memory
from workbench.widgets.sidebar import example_recipes


def test_stored_hidden_states_increase_the_memory_estimate():
    model = lrcore.load("demo-llama")

    def need(evaluation=None, **changes):
        return memory.needed(model, lrcore.Recipe(**changes), 10.0, evaluation)

    assert need() == need(samples=512) == 10_000_000
    assert need(calibration_mode="sequential") == 10_000_000 + 64 * 256 * 256 * 4
    assert need(refit="on", samples=128) == 10_000_000 + 3 * 128 * 256 * 256 * 4
    training = 10_000_000  # six copies of one of six layers
    assert need(refit="trained", samples=128) == need(refit="on", samples=128) + training
    distillation = 50_000_000 + 2048 * 6 * 256 * 68  # five copies of all layers, and activations
    assert need(refit="distilled", samples=128) == need(refit="on", samples=128) + distillation
    assert (
        need(lrcore.EvaluationSettings("stories", seq_len=128)) == 10_000_000 + 8 * 128 * 3072 * 4
    )


def test_per_layer_embeddings_are_stored_with_the_hidden_states():
    model = lrcore.load("demo-llama")
    model.network.config.hidden_size_per_layer_input = 8  # as in Gemma 4; 6 layers
    need = memory.needed(model, lrcore.Recipe(calibration_mode="sequential"), 10.0, None)
    assert need == 10_000_000 + 64 * 256 * (256 + 6 * 8) * 4


def test_a_model_that_does_not_fit_gets_a_suggestion():
    assert "not fit" not in memory.sentence(10**6, 10**9)
    assert "fewer" in memory.sentence(10**10, 10**9)


def test_the_device_of_a_loaded_model_is_named_with_its_memory(monkeypatch):
    model = lrcore.load("demo-llama")
    line = memory.device_line(model)
    assert line.startswith("float32 · CPU ")
    assert "memory free" in line
    gpu = Hardware("GPU", "NVIDIA H200", 20 * 10**9, 150 * 10**9)
    monkeypatch.setattr(memory, "hardware", lambda device: gpu)
    assert memory.device_line(model) == "float32 · GPU NVIDIA H200 · 20 of 150 GB memory free"
    assert "aria-label='GPU memory: 87% used'><i style='width:87%'>" in memory.device_bar(model)
    monkeypatch.setattr(memory, "hardware", lambda device: Hardware("MPS", ""))
    assert memory.device_line(model) == "float32 · MPS"
    assert "memory-bar" not in memory.device_bar(model)


def test_each_example_is_a_recipe_of_a_different_method():
    recipes = [recipe for _, recipe in example_recipes().values()]
    assert {"a3", "modegpt", "fused"} <= {recipe.method for recipe in recipes}
    assert len({recipe.method for recipe in recipes}) == len(recipes)
