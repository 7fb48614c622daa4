"""Model card and report page of a run."""

from lrcore.checkpoints.card import ExportUsage
from lrcore.checkpoints.card import model_card as lrcore_model_card
from lrcore.evaluation.report import Table, page
from lrcore.recipes.history import Compressed
from lrcore.runs.runs import Run

from .. import words
from . import markup


def model_card(run: Run, stock: bool = False) -> str:
    """Return the model card of an exported run."""
    return lrcore_model_card(
        run.name,
        run.checkpoint,
        run.provenance,
        run.account.model.parameters,
        run.evaluations,
        ExportUsage(stock),
    )


def perplexity(value: float | None) -> str:
    """Return a perplexity; None: not finite."""
    return words.compare_and_runs.NOT_FINITE if value is None else f"{value:.4f}"


def report_html(run: Run) -> str:
    """Return a self-contained page: summary, measurements, recipe, ranks."""
    results = [
        (
            words.compare_and_runs.protocol(evaluation["protocol"]),
            perplexity(evaluation["perplexity"]),
            perplexity(evaluation["dense_perplexity"]),
        )
        for evaluation in run.evaluations
    ]
    account = run.account.to_dict()
    head, *ranks = [line.split(",") for line in run.ranks_csv.splitlines() if line] or [
        [words.compare_and_runs.NO_RANKS]
    ]
    compressed = run.step(Compressed)
    stages = {} if compressed is None else compressed.seconds
    return page(
        run.name,
        Table("Perplexity", results, ("protocol", "this model", "dense")),
        Table("Recipe", list(run.fields.items())),
        Table("Duration of each stage", [(name, f"{s:.2f} s") for name, s in stages.items()]),
        Table("Ranks", ranks, head),
        introduction=markup.summary(account, markup.prediction_cell(account)),
    )
