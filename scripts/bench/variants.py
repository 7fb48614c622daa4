"""The papers' own variants, one option away from each method's default: what every choice is
worth on these models.
"""

from collections.abc import Iterator

import lrcore

from .page import Subject, note, subjects, table, write_section
from .quality import evaluation, figure

RATIOS = (0.2, 0.4)
CHANGES = {
    "svd": "weights=fisher",
    "a3": "qk=q_only qk=k_only qk=weights scores=abs scores=wanda scores=random ov=inputs "
    "ov=overall mlp=abs mlp=wanda mlp=taylor",
    "latentllm": "preconditioner=covariance preconditioner=diag_hessian preconditioner=diag_l1 "
    "preconditioner=diag_l2 "
    "preconditioner=identity junction=left_identity junction=symmetric bias=add bias=keep "
    "attention=local attention=split_head "
    "attention=joint_qkv vo=joint vo=attention window=0 sparse=0.1 bits=8 bits=4",
    "care": "whitening=root whitening=identity joint=on group=1 group=2",
}


def variants(only: list[str]) -> None:
    """Perplexity of every variant under uniform ranks; `care` by the share of the KV cache, the
    others by decoder-linear parameters.
    """
    header = ["method", "option", *(f"{ratio:.0%}" for ratio in RATIOS), "KV bytes", "MB"]
    for subject in subjects(only):
        model = lrcore.load(subject.recipe.model)
        calibration = lrcore.calibrate(model, subject.recipe)
        dense = evaluation(model, subject)
        rows = [
            row
            for method in CHANGES
            for row in measured(model, calibration, subject, method, dense)
        ]
        words = (
            f"**{subject.title}**: dense perplexity {dense.perplexity:.3f}, {model.size.kv_bytes} "
            f"KV bytes per token, {model.size.megabytes:.2f} MB. The last two columns are those of "
            f"the model at {RATIOS[-1]:.0%}."
        )
        write_section(f"variants {subject.title}", f"{words}\n\n{table(header, rows)}")


def measured(
    model, calibration, subject: Subject, method: str, dense: lrcore.Evaluation
) -> Iterator[list]:
    """The rows of a method.

    A variant with the default's own figures (it has no part in this model) is left out.
    """
    default = None
    for change in ["", *CHANGES[method].split()]:
        options = dict([change.split("=")]) if change else {}
        factors = lrcore.factorise(model, calibration, method, options=options)
        cells = []
        for ratio in RATIOS:
            small = lrcore.compress(
                model, subject.recipe.with_(method=method, ratio=ratio, options=options), factors
            )
            cells.append(figure(small, subject, dense))
        cells += [small.size.kv_bytes, f"{small.size.megabytes:.2f}"]
        note(f"variants {subject.title} {method} {change} {cells}")
        default = default or cells
        if cells != default or not change:
            yield [method, f"`{change}`" if change else "default", *cells]
