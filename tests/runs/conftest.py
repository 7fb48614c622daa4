"""A sweep, and how often the expensive things of it are done."""

import importlib

import pytest

import lrcore

MODULES = {
    name: importlib.import_module(f"lrcore.{module}")
    for name, module in {
        "calibrate": "runs.sweep_store",
        "factorise": "runs.sweep_store",
        "compress": "compression.chain",
        "shorten": "compression.chain",
        "quantise": "compression.chain",
        "heal": "compression.chain",
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
    """How often the expensive things are done."""
    counts = {}
    for name, module in MODULES.items():
        plain = getattr(module, name)

        def wrapped(*args, name=name, plain=plain, **kwargs):
            counts[name] = counts.get(name, 0) + 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, wrapped)
    return counts
