"""The commands from calibration to a compressed folder. Heavy imports wait until they run."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..account import SizeAndCost
from ..errors import InputError
from ..recipe import Recipe
from ..settings import check_least, setting
from .arguments import AsJson, OnCluster, ToTrackio, load_dense, on_cluster
from .console import print_json, print_table, progress, say, show
from .flags import flags
from .listing import described, summaries
from .reports import compressed_report, growth, in_few_lines, option_rows, ratio_counts

app = typer.Typer()

Speed = Annotated[
    bool,
    typer.Option(
        "--speed",
        help="Count measured milliseconds instead of parameters: the same as --budget latency.",
    ),
]


@dataclass(frozen=True)
class OtherModel:
    """The model that a plan is projected onto; "" for none. context: tokens in its cache."""

    what_if: str = setting(
        "",
        "The sizes of another model with the same shares: Llama-2-7B, Llama-3-8B, Llama-3-70B, "
        "Qwen2.5-7B, or a config.json.",
        metavar="CONFIG",
    )
    context: int = setting(8192, "Tokens in the cache for --what-if.")

    def __post_init__(self) -> None:
        check_least("context", self.context, 1)


Bounds = Annotated[
    bool,
    typer.Option(
        "--bounds", help="Method modegpt: the error of every slot beside the bound of the paper."
    ),
]


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
    print_table([{"policy": row["name"], "what it does": row["summary"]} for row in policies])
    for kind, flag, rows in (
        ("method", "--option", listed),
        ("policy", "--policy-option", policies),
    ):
        print(f"\nOptions of a {kind}: {flag} NAME=VALUE, may be repeated")
        print_table([one for row in rows for one in option_rows(kind, row)])


@app.command()
@flags(recipe=("source", "windows"))
def calibrate(recipe: Recipe, cluster: OnCluster = None, as_json: AsJson = False) -> None:
    """Collect what all methods read. It is kept on disk, where the commands below find it."""
    import lrcore

    began = time.perf_counter()
    with on_cluster(cluster):
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
        float, typer.Option(help="Share of the energy that energy_rank holds.")
    ] = 0.9,
    as_json: AsJson = False,
) -> None:
    """Measure the ranks in every layer.

    By component and by matrix, of the weights alone and as the data sees them.
    """
    import lrcore

    if not 0 < threshold <= 1:
        raise InputError(f"threshold must lie in (0, 1], got {threshold:g}.")
    began, model = time.perf_counter(), load_dense(recipe)
    calibration = lrcore.calibrate(model, recipe, progress=progress)
    analysis = lrcore.analyse(model, calibration, progress=progress)
    rows = analysis.table(threshold).to_dict("records")
    values = {"protocol": analysis.protocol, "threshold": threshold, "seconds": _since(began)}
    show(as_json, values, "table", rows)


def by_latency(recipe: Recipe) -> Recipe:
    """The recipe with a budget of latency. Raises InputError where it names another one."""
    if recipe.budget not in ("auto", "latency"):
        raise InputError(
            f"--speed counts milliseconds, and the budget '{recipe.budget}' something else: give "
            "one of the two."
        )
    return recipe.with_(budget="latency")


@app.command()
@flags(recipe=("source", "windows", "methods", "plan"))
def allocate(
    recipe: Recipe,
    other: OtherModel,
    speed: Speed = False,
    bounds: Bounds = False,
    cluster: OnCluster = None,
    as_json: AsJson = False,
) -> None:
    """Show the ranks of a recipe.

    And what they save, in parameters, KV cache and work; nothing is written. Where the slots were
    probed, JSON has the predicted perplexity at every ratio as `curve`.
    """
    import lrcore

    recipe = by_latency(recipe) if speed else recipe
    model = load_dense(recipe)
    with on_cluster(cluster):
        factors = lrcore.prepare(model, recipe, progress=progress)
    factors = lrcore.with_kept_probes(model, factors, recipe)
    plan = lrcore.settle(model, factors, recipe)
    values: dict[str, Any] = {"recipe": recipe.to_dict(), "summary": plan.summary()}
    if other.what_if:
        found = lrcore.what_if(plan, recipe.method, other.what_if)
        values["what_if"] = found.to_dict(other.context)
    if bounds:
        values["bounds"] = lrcore.bounds(model, factors, plan, progress=progress)
    if as_json:
        values["curve"] = [asdict(point) for point in lrcore.predicted_curve(factors, recipe)]
    show(as_json, values, "ranks", plan.table().to_dict("records"))
    if not as_json and plan.predicted is None:
        print("No perplexity is predicted: the slots were not probed, as policy 'probed' does.")
    note(as_json, recipe, plan.account)


@app.command()
@flags(recipe=("source", "windows", "passes", "methods", "plan"))
def compress(
    recipe: Recipe,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write the compressed model to.")
    ],
    bounds: Bounds = False,
    cluster: OnCluster = None,
    trackio: ToTrackio = None,
    as_json: AsJson = False,
) -> None:
    """Compress a model into a folder. `evaluate` and `generate` take that folder as their model."""
    import lrcore
    from lrcore.checkpoints.out import check_out

    began = time.perf_counter()
    check_out(out)
    tracker = None if trackio is None else lrcore.Tracker(trackio)
    with on_cluster(cluster):
        small = _compressed(recipe, bounds)
    folder = lrcore.save(small, out)
    report = compressed_report(small)
    if tracker:
        figures = {**report["summary"], "seconds": report["seconds"]}
        tracker.log(small.name, report["recipe"], figures)
    values = {"out": str(folder), **report, "total_seconds": _since(began)}
    rows = values.pop("ranks")
    if not as_json:
        values["stock"] = in_few_lines(values["stock"])
    show(as_json, values, "ranks", rows)
    note(as_json, recipe, small.account, small.history[-1].about_experts)


def _compressed(recipe: Recipe, bounds: bool) -> Any:
    """The compressed model; with `bounds`, its history has them."""
    model = load_dense(recipe)
    import lrcore
    from lrcore.compression.bounds import with_bounds

    if not bounds:
        return lrcore.compress(model, recipe, progress=progress)
    factors = lrcore.prepare(model, recipe, progress=progress)
    plan = lrcore.settle(model, factors, recipe)
    checked = lrcore.bounds(model, factors, plan, progress=progress)
    small = lrcore.compress(model, recipe, factors, plan, progress=progress)
    return with_bounds(small, checked)


def note(as_json: bool, recipe: Recipe, account: SizeAndCost, about_experts: str = "") -> None:
    """Say what the ratio counts, whether the model grew or the policy's ranks were not given, and
    what there is to say about experts; beside JSON all but the first, on stderr.
    """
    planned = account.planned
    not_given = planned.not_given(recipe.policy) if planned else ""
    warnings = list(filter(None, [growth(account), not_given, about_experts]))
    if not as_json:
        print(" ".join([ratio_counts(recipe, account), *warnings]))
    elif warnings:
        say(f"warning: {' '.join(warnings)}")


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 3)
