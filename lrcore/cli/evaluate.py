"""Commands that measure models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..evaluation.evaluation_settings import EvaluationSettings
from ..system.errors import InputError
from ..system.files import check_file, write_text
from ..system.settings import setting
from .arguments import (
    AsJson,
    Batch,
    Loading,
    ModelOrFolder,
    Sharing,
    ToTrackio,
    make_tracker,
)
from .console import progress, show
from .flags import flags

app = typer.Typer()

# Columns of the table that `compare` prints.
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
)
SPEEDS = ("prefill_tokens_per_second", "decode_tokens_per_second")


@dataclass(frozen=True)
class Passes(Sharing):
    """Execution of the forward passes, without effect on results."""

    batch: int = setting(8, "Windows per forward pass.")


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

    The default is exp of the mean token loss over non-overlapping windows of the test split.
    """
    import lrcore

    tracker = make_tracker(trackio)
    with passes.workers(loading.device):
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
    """Optional measurements of a comparison."""

    speed: bool = setting(
        False, "Measure tokens per second, alternating between models.", flag="measure-speed"
    )
    local: bool = setting(False, "Measure local errors, and the loss of each compressed component.")
    prompt: list[str] | None = setting(  # noqa: RUF009 (typer has no immutable list)
        None, "Compare the answers to this prompt, too; repeatable."
    )


@app.command()
@flags(loading=("dtype", "device", "merge_factors"))
def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C...]", help="Up to six models or folders; the first is the reference."
        ),
    ],
    settings: EvaluationSettings,
    further: Further,
    loading: Loading,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML report.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare models on the same tokens.

    Loss, KL divergence and top-1 agreement with the first model, and size and cost.
    """
    if html is not None:
        check_file(html)
    loaded = [loading.load(name) for name in models]
    from ..evaluation.answers import answer_prompts
    from ..evaluation.compare_models import compare_models, comparison_page

    prompts = further.prompt or []
    answers = answer_prompts(loaded, prompts, progress=progress) if prompts else []
    for row in answers:
        if row["error"]:
            raise InputError(row["error"])
    result = compare_models(loaded, settings, further.speed, further.local, progress)
    if html is not None:
        write_text(html, comparison_page(result, answers=answers))
    if as_json:
        show(True, result | ({"answers": answers} if answers else {}))
        return
    columns = COLUMNS + (SPEEDS if further.speed else ())
    rows = [{name: row[name] for name in columns} for row in result["models"]]
    report = None if html is None else str(html)
    show(False, {"report": report, "protocol": result["protocol"]}, "models", rows)
    for details in result.get("details", ()):
        for name in ("contributions", "local_errors"):
            show(False, {}, details["name"], details[name])
    if answers:
        shown = [{name: row[name] for name in row if name != "error"} for row in answers]
        show(False, {}, "answers", shown)


@dataclass(frozen=True)
class Questions:
    """Questions of each task."""

    items: int | None = setting(None, "Number of items of each task. Default: all.", low=1)
    shots: int = setting(0, "Solved examples before each question.", low=0)


@app.command()
@flags(loading=("revision", "dtype", "device", "ratio"))
def tasks(
    model: ModelOrFolder,
    questions: Questions,
    loading: Loading,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="stories, shapes or scienceqa (with images), needle-TOKENS, a .jsonl file, or "
            "lm-eval:NAME (or a .yaml file); repeatable."
        ),
    ] = None,
    batch: Batch = 16,
    as_json: AsJson = False,
) -> None:
    """Answer multiple-choice questions.

    Accuracy by total and by mean log-likelihood per character. Tasks of lm-eval require
    that package.
    """
    loaded, rows, groups, lm_eval_names = loading.load(model), [], [], []
    items, shots = questions.items, questions.shots
    import lrcore

    from ..evaluation.tasks import lm_eval

    for name in task or ["stories"]:
        if name.startswith("lm-eval:"):
            lm_eval_names.append(name.removeprefix("lm-eval:"))
            continue
        result = lrcore.score_choices(loaded, name, items, batch, progress, shots).to_dict()
        protocol = result.pop("protocol")
        parts = result.pop("groups")
        groups += [{"task": name, "group": group, **share} for group, share in parts.items()]
        rows.append(result)
    values: dict[str, Any] = {"protocol": protocol} if rows else {}
    if lm_eval_names:
        values["lm_eval"] = lm_eval(loaded, lm_eval_names, items, batch, shots or None)
    if as_json:
        show(True, values | ({"groups": groups} if groups else {}), "tasks", rows)
        return
    show(False, values, "tasks", rows)
    if groups:
        show(False, {}, "groups", groups)


@app.command()
@flags(loading=("revision", "dtype", "device", "ratio"))
def cost(
    model: ModelOrFolder,
    loading: Loading,
    context: Annotated[
        int, typer.Option(help="Tokens of the prompt, and in the cache of a decoded token.")
    ] = 256,
    dense: Annotated[
        str | None,
        typer.Option(help="Measure speed, alternating with this model.", show_default=False),
    ] = None,
    kv_bits: Annotated[
        int | None,
        typer.Option(help="Bits of cached keys and values: 8, 4 or 2.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the cost of a model.

    Parameters, bytes on disk and in the KV cache, FLOPs; with --dense also speed and memory.
    """
    import lrcore

    loaded = loading.load(model)
    values = lrcore.measure_cost(loaded, context, kv_bits).to_dict()
    speeds = []
    if dense is not None:
        pair = [lrcore.load(dense, None, loading.dtype, loading.device), loaded]
        speeds = [speed.to_dict() for speed in lrcore.measure_speed(pair, progress=progress)]
    show(as_json, values, "speed", speeds)
