"""The command line: the same recipe as the page, the same words as the package.

Heavy imports wait until a command runs.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import Cancelled, InputError
from ..recipe import Recipe
from . import heal, measuring, runs, whole
from .console import print_json, print_table, progress, say, show
from .measuring import AsJson, Device, Dtype, ModelOrFolder, Offload, Revision, ToTrackio
from .recipe import (
    Bounds,
    Budget,
    Calibration,
    Data,
    Method,
    Model,
    Multiple,
    OptionFlag,
    Override,
    Policy,
    PolicyFlag,
    Ratio,
    RatioFlag,
    RecipeFile,
    Refit,
    Rounding,
    Samples,
    Sampling,
    Seed,
    SeqLen,
    Temperature,
    read_recipe,
)

app = typer.Typer(
    help="Low-rank compression of transformer language models.\n\n"
    "MODEL is a demo model (demo-llama, demo-opt), a folder, or a hub id. "
    "DATA is a built-in set (stories, python-docs), a .txt, .jsonl, .json or .parquet file, or a "
    "hub data set name:config:split.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(measuring.app)
app.add_typer(heal.app)
app.add_typer(whole.app)
app.add_typer(runs.app, name="runs")


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List compression methods and allocation policies."""
    import lrcore

    listed, policies = lrcore.methods(), lrcore.policies()
    if as_json:
        print_json({"methods": listed, "policies": policies})
        return
    print_table(
        [
            {"method": row["name"], "components": row["components"], "paper": row["paper"]}
            for row in listed
        ]
    )
    print()
    print_table([{"policy": row["name"], "what it does": row["summary"]} for row in policies])


@app.command()
def calibrate(
    ctx: typer.Context,
    model: Model = None,
    recipe: RecipeFile = None,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = None,
    data: Data = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    sampling: Sampling = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Collect what all methods read. It is kept on disk, where the commands below find it."""
    import lrcore

    asked, began = read_recipe(ctx), time.perf_counter()
    found = lrcore.calibrate(_load(asked), asked, progress=progress)
    values = {
        "key": found.key,
        "layers": found.layers,
        "protocol": found.protocol,
        "block_influence": found.block_influence,
    }
    show(as_json, values | {"seconds": round(time.perf_counter() - began, 3)})


@app.command()
def spectra(
    ctx: typer.Context,
    model: Model = None,
    recipe: RecipeFile = None,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = None,
    data: Data = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    sampling: Sampling = None,
    seed: Seed = None,
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
    asked, began = read_recipe(ctx), time.perf_counter()
    loaded = _load(asked)
    found = lrcore.analyse(
        loaded, lrcore.calibrate(loaded, asked, progress=progress), progress=progress
    )
    rows = found.table(threshold).to_dict("records")
    values = {
        "protocol": found.protocol,
        "threshold": threshold,
        "seconds": round(time.perf_counter() - began, 3),
    }
    show(as_json, values, "table", rows)


@app.command()
def allocate(
    ctx: typer.Context,
    model: Model = None,
    recipe: RecipeFile = None,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = None,
    data: Data = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    sampling: Sampling = None,
    seed: Seed = None,
    method: Method = None,
    policy: Policy = None,
    temperature: Temperature = None,
    ratio: Ratio = None,
    budget: Budget = None,
    rounding: Rounding = None,
    multiple: Multiple = None,
    option: OptionFlag = None,
    policy_option: PolicyFlag = None,
    component_ratio: RatioFlag = None,
    override: Override = None,
    bounds: Bounds = False,
    as_json: AsJson = False,
) -> None:
    """Show the ranks of a recipe.

    And what they save, in parameters, KV cache and work; nothing is written.
    """
    import lrcore

    asked = read_recipe(ctx)
    loaded = _load(asked)
    factors = lrcore.prepare(loaded, asked, progress=progress)
    plan = lrcore.allocate(factors, asked)
    values = {"recipe": asked.to_dict(), "summary": plan.summary()}
    if bounds:
        values["bounds"] = lrcore.bounds(loaded, factors, plan, progress=progress)
    show(as_json, values, "ranks", plan.table().to_dict("records"))


@app.command()
def compress(
    ctx: typer.Context,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write the compressed model to.")
    ],
    model: Model = None,
    recipe: RecipeFile = None,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = None,
    data: Data = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    sampling: Sampling = None,
    seed: Seed = None,
    calibration: Calibration = None,
    refit: Refit = None,
    method: Method = None,
    policy: Policy = None,
    temperature: Temperature = None,
    ratio: Ratio = None,
    budget: Budget = None,
    rounding: Rounding = None,
    multiple: Multiple = None,
    option: OptionFlag = None,
    policy_option: PolicyFlag = None,
    component_ratio: RatioFlag = None,
    override: Override = None,
    bounds: Bounds = False,
    trackio: ToTrackio = None,
    as_json: AsJson = False,
) -> None:
    """Compress a model into a folder. `evaluate` and `generate` take that folder as their model."""
    import lrcore
    from lrcore.checkpoints.checkpoint import check_target

    asked, began = read_recipe(ctx), time.perf_counter()
    check_target(out)
    tracker = lrcore.Tracker(trackio) if trackio else None
    loaded = _load(asked)
    if bounds:
        factors = lrcore.prepare(loaded, asked, progress=progress)
        plan = lrcore.allocate(factors, asked)
        found = lrcore.bounds(loaded, factors, plan, progress=progress)
        small = lrcore.compress(loaded, asked, factors, plan, progress=progress)
        small.report["bounds"] = found
    else:
        small = lrcore.compress(loaded, asked, progress=progress)
    folder = lrcore.save(small, out)
    if tracker:
        tracker.log(
            small.name,
            small.report["recipe"],
            {**small.report["summary"], "seconds": small.report["seconds"]},
        )
    values = {
        "out": str(folder),
        **small.report,
        "total_seconds": round(time.perf_counter() - began, 3),
    }
    rows = values.pop("ranks")
    show(as_json, values, "ranks", rows)


@app.command()
def generate(
    model: ModelOrFolder,
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens to add.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the smallest set of tokens with this share.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Continue a prompt. Prints it and, as it is made, what follows."""
    import lrcore

    asked = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    pieces = lrcore.stream(lrcore.load(model, revision, dtype, device), prompt, **asked)
    if as_json:
        print_json({"model": model, "prompt": prompt, "text": "".join(pieces), **asked})
        return
    print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


@app.command()
def quantise(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN", help="Demo model, folder, hub id, or a run of the page."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    bits: Annotated[int, typer.Option(help="Of a code: 8 or 4.")] = 8,
    group: Annotated[int, typer.Option(help="Numbers that share a grid.")] = 64,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Store a model's matrices as codes.

    Half-quadratic (HQQ), without data; `evaluate`, `compare` and `export` take the folder.
    """
    import lrcore
    from lrcore.checkpoints.checkpoint import check_target
    from lrcore.checkpoints.export import run_checkpoint

    check_target(out)
    loaded = lrcore.load(run_checkpoint(model), dtype=dtype, device=device)
    made = lrcore.quantise(loaded, bits, group, progress=progress)
    values = {"out": str(lrcore.save(made, out)), "quantised": made.report["quantised"]}
    show(
        as_json,
        values | {"megabytes_before": loaded.size.megabytes, "megabytes": made.size.megabytes},
    )


@app.command()
def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="DIR_OR_RUN", help="Folder that `compress` wrote, or a run of the page."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    stock: Annotated[
        bool,
        typer.Option(
            "--stock",
            help="An architecture of transformers, without code; where the ranks allow it.",
        ),
    ] = False,
    result: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="What `evaluate --json` printed, for the card; repeatable."
        ),
    ] = None,
    push_to_hub: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Upload the folder to this repository too."),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Write a Hugging Face folder.

    It loads without this project, by trust_remote_code or, with --stock, without any code.
    """
    import lrcore
    from lrcore.checkpoints.checkpoint import check_target
    from lrcore.checkpoints.export import read_results, run_checkpoint

    check_target(out)
    measured = read_results(model, result or ())
    folder = lrcore.export(
        lrcore.load(run_checkpoint(model), dtype=dtype, device="cpu"), out, measured, stock
    )
    address = lrcore.push(folder, push_to_hub, private=not public) if push_to_hub else None
    show(as_json, {"out": str(folder), "results": len(measured), "repository": address})


def _load(asked: Recipe) -> Any:
    import lrcore

    return lrcore.load(asked.model, asked.revision, asked.dtype, asked.device, asked.offload)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 2 for bad input (one `error:` line), 130 when
    cancelled, 1 for a fault of ours.

    LRCORE_DEBUG=1 shows the traceback of a fault.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        result = typer.main.get_command(app).main(
            args=given, prog_name="python -m lrcore", standalone_mode=False
        )
        if result == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except InputError as error:
        return _stop(f"error: {error}", 2)
    except typer.TyperException as error:
        return _stop(f"error: {error.format_message().rstrip('.')}. See --help.", 2)
    except (Cancelled, KeyboardInterrupt, typer.Abort):
        return _stop("cancelled", 130)
    except BrokenPipeError:  # the reader, such as `head`, has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("LRCORE_DEBUG"):
            raise
        return _stop(f"error: {type(error).__name__}: {error} (LRCORE_DEBUG=1 shows where)", 1)


def _stop(message: str, code: int) -> int:
    progress.clear()
    say(message)
    return code
