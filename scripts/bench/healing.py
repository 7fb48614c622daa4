"""What healing gives back: perplexity before and after a hundred steps against the dense model."""

import lrcore

from .page import note, subjects, table, write_section
from .quality import evaluation, figure

SETTINGS = {"steps": 100, "batch": 4, "seq_len": 128}
CELLS = (
    ("care", 0.8, {"lr": 3e-3}),
    ("care", 0.8, {"lr": 3e-3, "rotary_channel": 8}),
    ("care", 0.8, {"lr": 3e-3, "beta": 0.0}),
    ("care", 0.75, {"lr": 3e-3}),
    ("modegpt", 0.5, {"lr": 5e-4}),
    ("fused", 0.5, {"lr": 5e-4}),
)


def healing(only: list[str]) -> None:
    """One row per cell, on demo-llama alone, with uniform ranks."""
    if only and "demo-llama" not in only:
        return
    header = ["method", "removed", "trained", "d_r", "beta", "lr", "parameters", "before", "after"]
    subject = next(subjects(["demo-llama"]))
    model, rows = lrcore.load(subject.recipe.model), []
    dense = evaluation(model, subject)
    for method, ratio, changes in CELLS:
        small = lrcore.compress(model, subject.recipe.with_(method=method, ratio=ratio))
        healing_settings = lrcore.Healing(**SETTINGS, test_samples=0, **changes)
        healed = lrcore.heal(small, healing_settings, teacher=model)
        healing_step, figures = (
            healed.step(lrcore.Healed),
            [figure(one, subject, dense) for one in (small, healed)],
        )
        trained = f"{healing_step.train}, {healing_step.trained_parameters:,}"
        settings = [
            f"{ratio:.0%}",
            trained,
            healing_settings.rotary_channel,
            f"{healing_settings.beta:g}",
            f"{healing_settings.lr:g}",
            f"{healed.size.parameters:,}",
        ]
        rows.append([method, *settings, *figures])
        note(f"healing {rows[-1]}")
        heading = (
            f"**demo-llama**: dense perplexity {dense.perplexity:.3f}; uniform ranks, `care` by "
            f"the share of the KV cache. {healing_settings.steps} steps of "
            f"{healing_settings.batch} windows of {healing_settings.seq_len} tokens out of "
            f"{healing_settings.samples} (`stories`, calibration split), "
            f"temperature {healing_settings.temperature:g}; perplexity on the first "
            f"{subject.windows} windows of 256 of its test split."
        )
        write_section(
            "healing demo-llama", f"{heading}\n\n{table(header, rows)}"
        )  # row by row: nothing measured is lost
