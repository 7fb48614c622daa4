"""A narrower residual stream, by both choices of rotations, under the protocol of the other
tables.
"""

import lrcore

from .page import RATIOS, note, subjects, table, write_section
from .quality import evaluation, figure

HEADER = [
    "rotations",
    *(f"{ratio:.0%}" for ratio in RATIOS),
    "width at 50 %",
    "residual matrices at 50 %",
    "parameters at 50 %",
]


def width(only: list[str]) -> None:
    """Perplexity of SliceGPT at 10-50 % of the decoder-linear parameters, its residual matrices
    counted among them.
    """
    for subject in subjects(only):
        model, rows = lrcore.load(subject.recipe.model), []
        dense = evaluation(model, subject)
        for rotations in ("block", "one"):
            perplexities = []
            for ratio in RATIOS:
                small = lrcore.slice_hidden(model, subject.recipe.with_(ratio=ratio), rotations)
                perplexities.append(figure(small, subject, dense))
                note(
                    f"width {subject.title} {rotations} {ratio:.0%} "
                    f"{small.step(lrcore.Sliced).width} {perplexities[-1]}"
                )
            sliced = small.step(lrcore.Sliced)
            rows.append(
                [
                    rotations,
                    *perplexities,
                    sliced.width,
                    f"{sliced.residual_parameters:,}",
                    f"{small.size.parameters:,}",
                ]
            )
        heading = (
            f"**{subject.title}**, a stream {sliced.of} wide, {model.size.parameters:,} parameters."
        )
        write_section(f"width {subject.title}", f"{heading}\n\n{table(HEADER, rows)}")
