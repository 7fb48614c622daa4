"""The fraction of the output energy that each method preserves."""

import lrcore
from lrcore.methods import METHODS

from .report import log, table, write_section
from .subjects import subjects


def energy(models: list[str]) -> None:
    """Measure the mean fraction of the output energy that uniform ranks preserve, by matrix or
    component.
    """
    for subject in subjects(models):
        title, recipe = subject.title, subject.recipe
        model = lrcore.load(recipe.model)
        calibration = lrcore.calibrate(model, recipe)
        rows = []
        for method in METHODS:
            factors = lrcore.factorize(model, calibration, method)
            for ratio in (0.2, 0.5):
                try:
                    plan = lrcore.allocate(
                        factors, recipe.with_(method=method, ratio=ratio)
                    ).table()
                except lrcore.InputError as error:  # the ratio is too high for the method
                    log(f"energy {title} {method} is skipped: {error}")
                    continue
                means = plan.groupby("component", sort=False).agg(
                    rank=("rank", "mean"), full=("full", "first"), energy=("energy", "mean")
                )
                cells = ", ".join(
                    f"{name} {row['energy']:.4f} ({row['rank'] / row['full']:.2f})"
                    for name, row in means.iterrows()
                )
                rows.append([method, f"{ratio:.0%}", cells])
        text = table(["method", "removed", "energy preserved (fraction of the ranks)"], rows)
        write_section(f"energy {title}", f"**{title}**\n\n{text}")
