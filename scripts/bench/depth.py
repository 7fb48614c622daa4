"""Whole layers dropped, by either order, under the protocol of the other tables."""

import lrcore

from .page import note, subjects, table, write_section
from .quality import evaluation, figure

HEADER = [
    "dropped by",
    "layers",
    "which",
    "decoder-linear parameters removed",
    "perplexity",
    "KV bytes",
]


def depth(only: list[str]) -> None:
    """Perplexity without one and two layers, chosen on the calibration windows of the other
    tables.
    """
    for subject in subjects(only):
        model, rows = lrcore.load(subject.recipe.model), []
        dense = evaluation(model, subject)
        for by in ("influence", "loss"):
            for layers in (1, 2):
                short = lrcore.shorten(model, subject.recipe, layers, by)
                gone = short.step(lrcore.Shortened).gone
                share = 1 - short.size.decoder_linear / model.size.decoder_linear
                which = ", ".join(map(str, gone))
                rows.append(
                    [
                        by,
                        layers,
                        which,
                        f"{share:.1%}",
                        figure(short, subject, dense),
                        short.size.kv_bytes,
                    ]
                )
                note(f"depth {subject.title} {rows[-1]}")
        write_section(
            f"depth {subject.title}",
            f"**{subject.title}**, {short.step(lrcore.Shortened).of} "
            f"layers.\n\n{table(HEADER, rows)}",
        )
