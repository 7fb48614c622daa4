"""Why the order of the methods is what it is: the share of the output energy that each one
keeps.
"""

import lrcore
from lrcore.methods import METHODS

from .page import subjects, table, write_section


def energy(only: list[str]) -> None:
    """Mean share of the output energy that the ranks of a uniform plan keep, by matrix or
    component.
    """
    for subject in subjects(only):
        title, recipe = subject.title, subject.recipe
        model = lrcore.load(recipe.model)
        calibration = lrcore.calibrate(model, recipe)
        rows = []
        for method in METHODS:
            factors = lrcore.factorise(model, calibration, method)
            for ratio in (0.2, 0.5):
                plan = lrcore.allocate(factors, recipe.with_(method=method, ratio=ratio)).table()
                kept = plan.groupby("component", sort=False).agg(
                    keep=("rank", "mean"), full=("full", "first"), energy=("energy", "mean")
                )
                cells = ", ".join(
                    f"{name} {row.energy:.4f} ({row.keep / row.full:.2f})"
                    for name, row in kept.iterrows()
                )
                rows.append([method, f"{ratio:.0%}", cells])
        text = table(["method", "removed", "energy kept (share of the ranks)"], rows)
        write_section(f"energy {title}", f"**{title}**\n\n{text}")
