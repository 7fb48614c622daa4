"""Variants of the papers: perplexity with a single option changed from the default."""

from collections.abc import Iterator

import lrcore
from lrcore.evaluation.evaluate import Evaluation

from .perplexity import evaluation, figure
from .report import log, table, write_section
from .subjects import Subject, subjects

RATIOS = (0.2, 0.4)
CHANGES = {
    "svd": "weights=fisher",
    "compot": "atoms=3 rounds=0 dictionary=least_squares",
    "a3": "qk=q_only qk=k_only qk=weights scores=abs scores=wanda scores=random ov=inputs "
    "ov=overall mlp=abs mlp=wanda mlp=taylor",
    "latentllm": "preconditioner=covariance preconditioner=diag_hessian preconditioner=diag_l1 "
    "preconditioner=diag_l2 "
    "preconditioner=identity junction=left_identity junction=symmetric bias=add bias=keep "
    "attention=local attention=split_head "
    "attention=joint_qkv vo=joint vo=attention window=0 sparse=0.1 bits=8 bits=4",
    "care": "whitening=root whitening=identity joint=on group=1 group=2",
}


def variants(models: list[str]) -> None:
    """Measure the perplexity of all variants with uniform ranks; `care` by the fraction of the KV
    cache, the remaining methods by decoder-linear parameters.
    """
    header = ["method", "option", *(f"{ratio:.0%}" for ratio in RATIOS), "KV bytes", "MB"]
    for subject in subjects(models):
        model = lrcore.load(subject.recipe.model)
        calibration = lrcore.calibrate(model, subject.recipe)
        dense = evaluation(model, subject)
        rows = [
            row
            for method in CHANGES
            for row in variant_rows(model, calibration, subject, method, dense)
        ]
        caption = (
            f"**{subject.title}**: dense perplexity {dense.perplexity:.3f}, {model.size.kv_bytes} "
            f"KV bytes per token, {model.size.megabytes:.2f} MB. The last two columns describe the "
            f"model at {RATIOS[-1]:.0%}."
        )
        write_section(f"variants {subject.title}", f"{caption}\n\n{table(header, rows)}")


def variant_rows(
    model, calibration, subject: Subject, method: str, dense: Evaluation
) -> Iterator[list]:
    """Yield the rows of a method, without variants whose figures equal the default (the option does
    not apply to this model).
    """
    default = None
    for change in ["", *CHANGES[method].split()]:
        options = dict([change.split("=")]) if change else {}
        factors = lrcore.factorize(model, calibration, method, options=options)
        cells = []
        for ratio in RATIOS:
            compressed = lrcore.compress(
                model, subject.recipe.with_(method=method, ratio=ratio, options=options), factors
            )
            cells.append(figure(compressed, subject, dense))
        cells += [compressed.size.kv_bytes, f"{compressed.size.megabytes:.2f}"]
        log(f"variants {subject.title} {method} {change} {cells}")
        default = default or cells
        if cells != default or not change:
            yield [method, f"`{change}`" if change else "default", *cells]
