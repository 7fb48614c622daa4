"""What leaves the workbench: an exported folder with its model card, and a report page."""

from html import escape

import lrcore

from . import assets, markup, text


def model_card(run: lrcore.Run, stock: bool = False) -> str:
    """The card that an export of a run carries."""
    return lrcore.model_card(
        run.name,
        run.checkpoint,
        run.provenance,
        run.account.model.parameters,
        run.evaluations,
        lrcore.Usage(stock),
    )


def figure(number: float | None) -> str:
    return "not finite" if number is None else f"{number:.4f}"


def report_html(run: lrcore.Run) -> str:
    """One page that needs nothing else: summary, measurements, recipe, ranks."""
    recipe_rows = "".join(row(name, value) for name, value in run.fields.items())
    results = "".join(
        row(
            text.protocol(one["protocol"]),
            figure(one["perplexity"]),
            figure(one["dense_perplexity"]),
        )
        for one in run.evaluations
    )
    head, *body = [line.split(",") for line in run.ranks_csv.splitlines() if line] or [
        [text.NO_RANKS]
    ]
    ranks = row(*head, tag="th") + "".join(row(*line) for line in body)
    compressed = run.step(lrcore.Compressed)
    stages = {} if compressed is None else compressed.seconds
    seconds = "".join(row(stage, f"{value:.2f} s") for stage, value in stages.items())
    return assets.page(
        "report.html",
        name=escape(run.name),
        summary=markup.summary(run.account.to_dict()),
        perplexity=row("protocol", "this model", "dense", tag="th") + results,
        recipe=recipe_rows,
        seconds=seconds,
        ranks=ranks,
    )


def row(*cells: object, tag: str = "td") -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
