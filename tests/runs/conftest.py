"""Fixtures with a sweep and counters of its expensive operations."""

import importlib

import pytest

import lrcore

MODULES = {
    name: importlib.import_module(f"lrcore.{module}")
    for name, module in {
        "calibrate": "runs.sweep_store",
        "factorize": "runs.sweep_store",
        "compress": "compression.steps.chain",
        "prune_layers": "compression.steps.chain",
        "quantize": "compression.steps.chain",
        "heal": "compression.steps.chain",
        "evaluate": "runs.sweep_store",
    }.items()
}


@pytest.fixture
def requested(tiny_llama, story_file):
    base = lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, seed=2)
    return lrcore.Sweep(
        base,
        methods=["a3", "svd"],
        ratios=[0.2, 0.4],
        policies=["uniform"],
        evaluations=(lrcore.EvaluationSettings(str(story_file), 2, 16),),
    )


@pytest.fixture
def counted(monkeypatch):
    """Count the calls of expensive operations by name."""
    counts = {}
    for name, module in MODULES.items():
        plain = getattr(module, name)

        def wrapped(*args, name=name, plain=plain, **kwargs):
            counts[name] = counts.get(name, 0) + 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, wrapped)
    return counts
