"""The commands that measure models. Heavy imports wait until a command runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..evaluation.settings import EvaluationSettings
from ..files import check_file, write_text
from ..settings import setting
from .arguments import CLUSTER, AsJson, Batch, Loading, ModelOrFolder, ToTrackio, on_cluster
from .console import progress, show
from .flags import flags

app = typer.Typer()

COLUMNS = (
    "name",
    "perplexity",
    "delta_nll",
    "delta_error",
    "kl",
    "top1",
    "parameters",
    "kv_bytes_per_token",
    "flops_decode",
)  # of `compare`, for a person
SPEEDS = ("prefill_tokens_per_second", "decode_tokens_per_second")


@dataclass(frozen=True)
class Passes:
    """How the forward passes are made, which no figure depends on."""

    batch: int = setting(8, "Windows per forward pass.")
    cluster: str | None = setting(None, CLUSTER, metavar="ADDRESS")


@app.command()
@flags()
def evaluate(
    model: ModelOrFolder,
    settings: EvaluationSettings,
    loading: Loading,
    passes: Passes,
    trackio: ToTrackio = None,
    as_json: AsJson = False,
) -> None:
    """Measure perplexity by a named protocol.

    On the test split; by default non-overlapping full windows, mean token loss, exp.
    """
    import lrcore

    tracker = None if trackio is None else lrcore.Tracker(trackio)
    with on_cluster(passes.cluster):
        loaded = loading.load(model)
        measured = lrcore.evaluate(loaded, settings, batch=passes.batch, progress=progress)
    result = measured.to_dict()
    if tracker:
        figures = {name: value for name, value in result.items() if name != "protocol"}
        tracker.log(
            model,
            {"model": model, "protocol": result["protocol"]},
            figures | {"parameters": loaded.size.parameters},
        )
    show(as_json, result)


@dataclass(frozen=True)
class Further:
    """What a comparison may have besides the figures of every model."""

    speed: bool = setting(False, "Measure tokens per second, in turns.")
    local: bool = setting(False, "Local errors, and what each component costs alone.")


@app.command()
@flags(loading=("dtype", "device", "merge_factors"))
def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C...]", help="The reference first; up to six models or folders."
        ),
    ],
    settings: EvaluationSettings,
    further: Further,
    loading: Loading,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with tables and figures.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare models on the same tokens.

    Loss, KL divergence and top-1 agreement with the first, and what each costs.
    """
    if html is not None:
        check_file(html)
    loaded = [loading.load(name) for name in models]
    from ..evaluation import side_by_side

    result = side_by_side.side_by_side(loaded, settings, further.speed, further.local, progress)
    if html is not None:
        write_text(html, side_by_side.html(result))
    rows = result.pop("models")
    if as_json:
        show(True, {"models": rows, **result})
        return
    columns = COLUMNS + (SPEEDS if further.speed else ())
    show(
        False,
        {"protocol": result["protocol"]},
        "models",
        [{name: row[name] for name in columns} for row in rows],
    )
    for one in result.get("details", ()):
        for name in ("contributions", "local_errors"):
            show(False, {}, one["name"], one[name])


@dataclass(frozen=True)
class Questions:
    """Which questions of every task are asked."""

    items: int | None = setting(None, "The first so many items of each. Default: all.", low=1)
    shots: int = setting(0, "Solved examples before every question.", low=0)


@app.command()
@flags(loading=("revision", "dtype", "device"))
def tasks(
    model: ModelOrFolder,
    questions: Questions,
    loading: Loading,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="stories, shapes or scienceqa (with images), needle-TOKENS, a .jsonl file, or "
            "lm-eval:NAME (or its .yaml); repeatable."
        ),
    ] = None,
    batch: Batch = 16,
    as_json: AsJson = False,
) -> None:
    """Answer multiple-choice questions.

    Accuracy as it is and per character; lm-eval's tasks where it is installed.
    """
    import lrcore

    loaded, rows, groups, theirs = loading.load(model), [], [], []
    items, shots = questions.items, questions.shots
    for name in task or ["stories"]:
        if name.startswith("lm-eval:"):
            theirs.append(name.removeprefix("lm-eval:"))
            continue
        result = lrcore.score_choices(loaded, name, items, batch, progress, shots).to_dict()
        protocol = result.pop("protocol")
        parts = result.pop("groups")
        groups += [{"task": name, "group": one, **share} for one, share in parts.items()]
        rows.append(result)
    values: dict[str, Any] = {"protocol": protocol} if rows else {}
    if theirs:
        values["lm_eval"] = lrcore.lm_eval(loaded, theirs, items, batch, shots or None)
    if as_json:
        show(True, values | ({"groups": groups} if groups else {}), "tasks", rows)
        return
    show(False, values, "tasks", rows)
    if groups:
        show(False, {}, "groups", groups)


@app.command()
@flags(loading=("revision", "dtype", "device"))
def cost(
    model: ModelOrFolder,
    loading: Loading,
    context: Annotated[
        int, typer.Option(help="Tokens of the prompt, and looked back on by a decoded token.")
    ] = 256,
    dense: Annotated[
        str | None,
        typer.Option(help="Measure speed, in turns with this model.", show_default=False),
    ] = None,
    kv_bits: Annotated[
        int | None,
        typer.Option(help="Bits of cached keys and values: 8, 4 or 2.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a model costs.

    Parameters, bytes on disk and in the KV cache, FLOPs; speed and memory beside another.
    """
    import lrcore

    loaded = loading.load(model)
    values = lrcore.measure_cost(loaded, context, kv_bits).to_dict()
    speeds = []
    if dense is not None:
        pair = [lrcore.load(dense, None, loading.dtype, loading.device), loaded]
        speeds = [one.to_dict() for one in lrcore.measure_speed(pair, progress=progress)]
    show(as_json, values, "speed", speeds)
