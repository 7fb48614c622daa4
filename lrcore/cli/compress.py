"""Commands from calibration to a compressed model."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..layers.account import SizeAndCost
from ..recipes.recipe import Recipe
from ..system.errors import InputError
from ..system.settings import check_least, setting
from .arguments import (
    AsJson,
    Sharing,
    ToTrackio,
    load_dense,
    make_tracker,
    numbers,
)
from .console import print_json, print_table, progress, say, show
from .flags import flags
from .listing import described, summaries
from .reports import (
    compressed_report,
    compressed_values,
    cut_rows,
    growth,
    option_rows,
    ratio_counts,
    size_rows,
)

if TYPE_CHECKING:
    from ..ranks.plan import RankPlan  # imports torch

app = typer.Typer()


@dataclass(frozen=True)
class OtherModel:
    """The model whose savings --what-if predicts, "" for none. context: tokens in the cache."""

    what_if: str = setting(
        "",
        "Apply the ratios of the plan to the sizes of another model: Llama-2-7B, Llama-3-8B, "
        "Llama-3-70B, Qwen2.5-7B, or a config.json.",
        metavar="CONFIG",
    )
    context: int = setting(8192, "Tokens in the cache for --what-if.")

    def __post_init__(self) -> None:
        check_least("context", self.context, 1)


BOUNDS = "Method modegpt: compare the error of each slot with the paper's bound."
Bounds = Annotated[bool, typer.Option("--bounds", help=BOUNDS)]
_ratios = numbers(float, "Enter --nested as ratios separated by commas, such as 0.3,0.4")


@dataclass(frozen=True)
class Further:
    """Further results of a compression. Raises InputError if both are requested."""

    bounds: bool = setting(False, BOUNDS)
    nested: str | None = setting(
        None,
        "Larger ratios that the model can be cut to on loading (--ratio), such as 0.3,0.4.",
        metavar="RATIOS",
    )

    def __post_init__(self) -> None:
        if self.bounds and self.nested is not None:
            raise InputError("A nested checkpoint has no --bounds. Omit one of the two flags.")


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List compression methods and allocation policies, with their options."""
    if as_json:
        print_json(described())
        return
    listed, policies = summaries()
    print_table(
        [
            {"method": row["name"], "components": row["components"], "paper": row["paper"]}
            for row in listed
        ]
    )
    print()
    print_table([{"policy": row["name"], "description": row["summary"]} for row in policies])
    for kind, flag, rows in (
        ("method", "--option", listed),
        ("policy", "--policy-option", policies),
    ):
        print(f"\nOptions of a {kind}: {flag} NAME=VALUE, repeatable")
        print_table([line for row in rows for line in option_rows(kind, row)])


@app.command()
@flags(recipe=("source", "windows"))
def calibrate(recipe: Recipe, sharing: Sharing, as_json: AsJson = False) -> None:
    """Collect the statistics of all methods. They are cached for the commands below."""
    import lrcore

    began = time.perf_counter()
    with sharing.workers(recipe.device):
        model = load_dense(recipe)
        calibration = lrcore.calibrate(model, recipe, progress=progress)
    values = {
        "key": calibration.key,
        "layers": calibration.layers,
        "protocol": calibration.protocol,
        "block_influence": calibration.block_influence,
    }
    show(as_json, values | {"seconds": _since(began)})


@app.command()
@flags(recipe=("source", "windows"))
def spectra(
    recipe: Recipe,
    threshold: Annotated[
        float, typer.Option(help="Share of the energy for energy_rank, in (0, 1].")
    ] = 0.9,
    as_json: AsJson = False,
) -> None:
    """Measure the ranks in all layers.

    By component and by matrix, of the weights and of the weights with activations.
    """
    import lrcore

    if not 0 < threshold <= 1:
        raise InputError(f"threshold must lie in (0, 1], got {threshold:g}.")
    began, model = time.perf_counter(), load_dense(recipe)
    calibration = lrcore.calibrate(model, recipe, progress=progress)
    analysis = lrcore.analyze(model, calibration, progress=progress)
    rows = analysis.table(threshold).to_dict("records")
    values = {"protocol": analysis.protocol, "threshold": threshold, "seconds": _since(began)}
    show(as_json, values, "table", rows)


@app.command()
@flags(recipe=("source", "windows", "methods", "plan"))
def allocate(
    recipe: Recipe,
    other: OtherModel,
    sharing: Sharing,
    bounds: Bounds = False,
    as_json: AsJson = False,
) -> None:
    """Show the ranks of a recipe.

    With the savings in parameters, KV cache and FLOPs; no file is written. After probing, `curve`
    in the JSON output is the predicted perplexity at different ratios.
    """
    import lrcore

    with sharing.workers(recipe.device):
        model = load_dense(recipe)
        _say_slower(recipe)
        factors = lrcore.prepare(model, recipe, progress=progress)

    from ..compression.evidence.measure import with_cached_probes
    from ..compression.pipeline.model_bounds import plan_bounds
    from ..compression.solve.tokens_needed import tokens_needed
    from ..recipes.history import about_tokens

    factors = with_cached_probes(model, factors, recipe)
    plan = lrcore.choose_plan(model, factors, recipe)
    values: dict[str, Any] = {"recipe": recipe.to_dict(), "summary": plan.summary()}
    if other.what_if:
        projection = lrcore.what_if(plan, recipe.method, other.what_if)
        values["what_if"] = projection.to_dict(other.context)
    if bounds:
        values["bounds"] = plan_bounds(model, factors, plan, progress=progress)
    if as_json:
        values["curve"] = [asdict(point) for point in lrcore.predicted_curve(factors, recipe)]
    show(as_json, values, "ranks", plan.table().to_dict("records"))
    if not as_json and plan.predicted is None:
        print(f"No prediction of the perplexity: {missing_prediction(plan)}.")
    needed = tokens_needed(model.network, recipe)
    few_tokens = about_tokens(factors.calibration.tokens.numel(), needed)
    note(as_json, recipe, plan.account, few_tokens)


@app.command()
@flags(recipe=("source", "windows", "passes", "methods", "plan"))
def compress(
    recipe: Recipe,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the compressed model.")],
    sharing: Sharing,
    further: Further,
    trackio: ToTrackio = None,
    as_json: AsJson = False,
) -> None:
    """Compress a model. `evaluate` and `generate` accept the folder as a model.

    Prints the size and cost of the model; --json adds recipe, ranks, calibration and times.
    """
    began = time.perf_counter()
    from ..checkpoints.output_folder import check_output_folder

    check_output_folder(out)
    ratios = None if further.nested is None else _ratios(further.nested)
    tracker = make_tracker(trackio)
    import lrcore

    with sharing.workers(recipe.device):
        model = load_dense(recipe)
        _say_slower(recipe)
        if ratios is None:
            made: Any = lrcore.compress(model, recipe, progress=progress, bounds=further.bounds)
            small, cuts = made, {}
        else:
            made = lrcore.compress_nested(model, recipe, ratios, progress)
            small, cuts = made.model, {"cuts": cut_rows(made)}
    folder = lrcore.save(made, out)
    report = compressed_report(small) | cuts
    if tracker:
        figures = {**report["summary"], "seconds": report["seconds"]}
        tracker.log(small.name, report["recipe"], figures)
    end = {"total_seconds": _since(began)}
    if as_json:
        show(True, {"out": str(folder), **report, **end})
    else:
        values = {"out": str(folder), **compressed_values(small), **end}
        show(False, values, "sizes", list(size_rows(small.account)))
        print_table(report.get("bounds", ()))
        print_table(report.get("cuts", ()))
    note(as_json, recipe, small.account, small.history[-1].about_calibration)


def _say_slower(recipe: Recipe) -> None:
    """Print why decoding takes longer than with the dense model, before the work."""
    from ..compression.slower_decoding import slower_decoding

    if reason := slower_decoding(recipe):
        say(f"note: {reason}")


def missing_prediction(plan: "RankPlan") -> str:
    """Return why a plan has no predicted perplexity."""
    if plan.probes is None:
        return "only policy 'probed' measures the slots"
    if plan.is_trained:
        return "it does not cover the training of the layers"
    return "these ranks are too far from the plans that were measured"


def note(as_json: bool, recipe: Recipe, account: SizeAndCost, few_tokens: str = "") -> None:
    """Print what the ratio counts, and warnings; with JSON only the warnings, to stderr.

    Warnings: the model grew, uniform ranks replaced those of the policy, or the calibration has
    too few tokens.
    """
    planned = account.planned
    uniform_notice = planned.uniform_notice(recipe.policy) if planned else ""
    warnings = list(filter(None, [growth(account), uniform_notice, few_tokens]))
    if not as_json:
        print(" ".join([ratio_counts(recipe, account), *warnings]))
    elif warnings:
        say(f"warning: {' '.join(warnings)}")


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 3)
