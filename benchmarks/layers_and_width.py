"""Perplexity without layers (`prune-layers`) and with a narrower residual stream (`slice`)."""

import lrcore
from lrcore.recipes.history import LayersDropped, Sliced

from .perplexity import evaluation, figure
from .report import log, table, write_section
from .subjects import RATIOS, subjects

DEPTH_HEADER = [
    "dropped by",
    "layers dropped",
    "indices",
    "decoder-linear parameters removed",
    "perplexity",
    "KV bytes",
]
WIDTH_HEADER = [
    "rotations",
    *(f"{ratio:.0%}" for ratio in RATIOS),
    "width at 50 %",
    "residual matrices at 50 %",
    "parameters at 50 %",
]


def depth(models: list[str]) -> None:
    """Measure the perplexity without one and two layers, chosen on the calibration windows."""
    for subject in subjects(models):
        model, rows = lrcore.load(subject.recipe.model), []
        dense = evaluation(model, subject)
        for criterion in ("influence", "loss"):
            for count in (1, 2):
                short = lrcore.prune_layers(model, subject.recipe, count, criterion)
                dropped = short.step(LayersDropped).gone
                removed = 1 - short.size.decoder_linear / model.size.decoder_linear
                rows.append(
                    [
                        criterion,
                        count,
                        ", ".join(map(str, dropped)),
                        f"{removed:.1%}",
                        figure(short, subject, dense),
                        short.size.kv_bytes,
                    ]
                )
                log(f"depth {subject.title} {rows[-1]}")
        total = short.step(LayersDropped).of
        caption = f"**{subject.title}**, {total} layers."
        write_section(f"depth {subject.title}", f"{caption}\n\n{table(DEPTH_HEADER, rows)}")


def width(models: list[str]) -> None:
    """Measure the perplexity of SliceGPT at 10-50 % of the decoder-linear parameters, including its
    residual matrices.
    """
    for subject in subjects(models):
        model, rows = lrcore.load(subject.recipe.model), []
        dense = evaluation(model, subject)
        for rotations in ("block", "one"):
            perplexities = []
            for ratio in RATIOS:
                compressed = lrcore.slice_hidden(
                    model, subject.recipe.with_(ratio=ratio), rotations
                )
                perplexities.append(figure(compressed, subject, dense))
                log(
                    f"width {subject.title} {rotations} {ratio:.0%} "
                    f"{compressed.step(Sliced).width} {perplexities[-1]}"
                )
            sliced = compressed.step(Sliced)
            rows.append(
                [
                    rotations,
                    *perplexities,
                    sliced.width,
                    f"{sliced.residual_parameters:,}",
                    f"{compressed.size.parameters:,}",
                ]
            )
        caption = (
            f"**{subject.title}**, stream width {sliced.of}, {model.size.parameters:,} parameters."
        )
        write_section(f"width {subject.title}", f"{caption}\n\n{table(WIDTH_HEADER, rows)}")
