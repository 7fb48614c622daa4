"""The commands that measure models. Heavy imports wait until a command runs."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..files import write_text
from .console import progress, show

app = typer.Typer()

ModelOrFolder = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_DIR", help="Demo model, folder (compressed or not) or hub id."
    ),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16, float16, float64, or auto (as stored).")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Offload = Annotated[
    bool | None,
    typer.Option(
        "--offload", help="Leave the layers on disk, one in memory at a time.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
TestData = Annotated[
    str, typer.Option(help="Text to score: built-in name, file, or name:config:split.")
]
Windows = Annotated[
    int | None,
    typer.Option(
        "--samples", help="Number of windows (or documents). Default: all.", show_default=False
    ),
]
WindowLength = Annotated[
    int | None, typer.Option(help="Tokens per window. Default: the protocol's.", show_default=False)
]
WindowSampling = Annotated[str, typer.Option(help="Which windows: first or random.")]
WindowSeed = Annotated[int, typer.Option(help="Seed of the random choice.")]
Batch = Annotated[int, typer.Option(help="Windows per forward pass.")]
ProtocolName = Annotated[
    str,
    typer.Option(
        "--protocol",
        help="windows, gptq-2048, gptq-2048-c4, gptq-2048-ptb, strided or lm-eval-word.",
    ),
]
ToTrackio = Annotated[
    str | None,
    typer.Option(
        "--trackio",
        metavar="PROJECT",
        help="Keep the figures in trackio's local store too.",
        show_default=False,
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(help="Of protocol strided. Default: half a window.", show_default=False),
]


@app.command()
def evaluate(
    model: ModelOrFolder,
    data: TestData = "stories",
    samples: Windows = None,
    seq_len: WindowLength = None,
    sampling: WindowSampling = "first",
    seed: WindowSeed = 0,
    batch: Batch = 8,
    protocol: ProtocolName = "windows",
    stride: Stride = None,
    trackio: ToTrackio = None,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = "auto",
    offload: Offload = None,
    as_json: AsJson = False,
) -> None:
    """Measure perplexity by a named protocol.

    On the test split; by default non-overlapping full windows, mean token loss, exp.
    """
    import lrcore

    asked = lrcore.EvaluationSettings(data, samples, seq_len, sampling, seed, protocol, stride)
    tracker = lrcore.Tracker(trackio) if trackio else None
    loaded = lrcore.load(model, revision, dtype, device, bool(offload))
    found = lrcore.evaluate(loaded, asked, batch=batch, progress=progress).to_dict()
    if tracker:
        figures = {name: value for name, value in found.items() if name != "protocol"}
        tracker.log(
            model,
            {"model": model, "protocol": found["protocol"]},
            figures | {"parameters": loaded.size.parameters},
        )
    show(as_json, found)


@app.command()
def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C...]", help="The reference first; up to six models or folders."
        ),
    ],
    data: TestData = "stories",
    samples: Windows = None,
    seq_len: WindowLength = None,
    sampling: WindowSampling = "first",
    seed: WindowSeed = 0,
    protocol: ProtocolName = "windows",
    stride: Stride = None,
    speed: Annotated[
        bool, typer.Option("--speed", help="Measure tokens per second, in turns.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Local errors, and what each component costs alone.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with tables and figures.")
    ] = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Lay models side by side on the same tokens.

    Loss, KL divergence and top-1 agreement with the first, and what each costs.
    """
    import lrcore

    from ..evaluation import side_by_side

    asked = lrcore.EvaluationSettings(data, samples, seq_len, sampling, seed, protocol, stride)
    loaded = [lrcore.load(name, None, dtype, device) for name in models]
    found = side_by_side.side_by_side(loaded, asked, speed, local, progress)
    if html is not None:
        write_text(html, side_by_side.html(found))
    rows = found.pop("models")
    if as_json:
        show(True, {"models": rows, **found})
        return
    kept = (
        "name",
        "perplexity",
        "delta_nll",
        "kl",
        "top1",
        "parameters",
        "kv_bytes_per_token",
        "flops_decode",
    )
    more = ("prefill_tokens_per_second", "decode_tokens_per_second") if speed else ()
    show(
        False,
        {"protocol": found["protocol"]},
        "models",
        [{name: row[name] for name in (*kept, *more)} for row in rows],
    )
    for one in found.get("details", ()):
        for name in ("contributions", "local_errors"):
            show(False, {}, one["name"], one[name])


@app.command()
def tasks(
    model: ModelOrFolder,
    task: Annotated[
        list[str] | None,
        typer.Option(help="stories, a .jsonl file, or lm-eval:NAME (or its .yaml); repeatable."),
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(help="The first so many items of each. Default: all.", show_default=False),
    ] = None,
    batch: Batch = 16,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Answer multiple-choice questions.

    Accuracy as it is and per character; lm-eval's tasks where it is installed.
    """
    import lrcore

    loaded, rows, theirs = lrcore.load(model, revision, dtype, device), [], []
    for name in task or ["stories"]:
        if name.startswith("lm-eval:"):
            theirs.append(name.removeprefix("lm-eval:"))
            continue
        found = lrcore.score_choices(loaded, name, items, batch, progress).to_dict()
        protocol = found.pop("protocol")
        rows.append(found)
    values: dict[str, Any] = {"protocol": protocol} if rows else {}
    if theirs:
        values["lm_eval"] = lrcore.lm_eval(loaded, theirs, items, batch)
    show(as_json, values, "tasks", rows)


@app.command()
def cost(
    model: ModelOrFolder,
    context: Annotated[
        int, typer.Option(help="Tokens of the prompt, and looked back on by a decoded token.")
    ] = 256,
    dense: Annotated[
        str | None,
        typer.Option(help="Measure speed, in turns with this model.", show_default=False),
    ] = None,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure what a model costs.

    Parameters, bytes on disk and in the KV cache, FLOPs; speed and memory beside another.
    """
    import lrcore

    loaded = lrcore.load(model, revision, dtype, device)
    values = lrcore.measure_cost(loaded, context).to_dict()
    speeds = []
    if dense is not None:
        pair = [lrcore.load(dense, None, dtype, device), loaded]
        speeds = [one.to_dict() for one in lrcore.measure_speed(pair, progress=progress)]
    show(as_json, values, "speed", speeds)


@app.command()
def sweep(
    recipe: Annotated[
        Path,
        typer.Argument(
            metavar="RECIPE", help="A recipe (.json, .yaml), with lists as below or without."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for cells, tables and page; goes on with one."),
    ] = Path("sweep"),
    methods: Annotated[
        str | None,
        typer.Option(help="With commas between; as are the following.", show_default=False),
    ] = None,
    policies: Annotated[str | None, typer.Option(show_default=False)] = None,
    ratios: Annotated[str | None, typer.Option(show_default=False)] = None,
    calibration_sets: Annotated[str | None, typer.Option(show_default=False)] = None,
    cross: Annotated[
        str | None,
        typer.Option(help="Data sets: calibrate on each, measure on each.", show_default=False),
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed", help="Measure speed in turns with the dense model.")
    ] = False,
    trackio: ToTrackio = None,
    as_json: AsJson = False,
) -> None:
    """Try methods x policies x ratios x calibration sets.

    Go on where it stopped; write table.csv, table.json and report.html.
    """
    import lrcore

    from ..runs import sweep_page

    tracker = lrcore.Tracker(trackio) if trackio else None
    asked = lrcore.Sweep.read(recipe)
    given = {
        "methods": methods,
        "policies": policies,
        "ratios": ratios,
        "calibration_sets": calibration_sets,
    }
    lists = {name: _words(value) for name, value in given.items() if value is not None}
    if "ratios" in lists:
        lists["ratios"] = _shares(lists["ratios"])
    asked = replace(asked, **lists, speed=speed or asked.speed)
    if cross is not None:
        sets = _words(cross)
        asked = replace(
            asked,
            **{
                name: getattr(lrcore.cross_calibration(asked.base, sets), name)
                for name in ("calibration_sets", "evaluations")
            },
        )
    base = asked.base
    rows = lrcore.run_sweep(
        lrcore.load(base.model, base.revision, base.dtype, base.device, base.offload),
        asked,
        out,
        progress,
    )
    files = sweep_page.write_tables(rows, asked.to_dict(), out)
    if tracker:
        tracker.log_sweep(rows, asked.to_dict())
    show(
        as_json,
        {"files": files},
        "rows",
        rows if as_json else [sweep_page.plain(row) for row in rows],
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _shares(words: list[str]) -> list[float]:
    try:
        return [float(word) for word in words]
    except ValueError:
        raise InputError(
            "--ratios reads shares between 0 and 1 with commas, such as 0.1,0.2; got "
            f"'{','.join(words)}'."
        ) from None


@app.command()
def answers(
    models: Annotated[list[str], typer.Argument(metavar="A [B...]", help="Models or folders.")],
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="Prompts: .txt (one per line), .jsonl or .json.")
    ],
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the table to this file.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens to add.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the smallest set of tokens with this share.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same for every prompt and model.")] = 0,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Continue a set of prompts with several models.

    Same settings and seed; the table goes to a CSV file.
    """
    import lrcore

    asked = lrcore.read_prompts(prompts)
    loaded = [lrcore.load(name, None, dtype, device) for name in models]
    rows = lrcore.answers(loaded, asked, max_new_tokens, temperature, top_p, seed, progress)
    if csv is not None:
        write_text(csv, lrcore.answers_csv(rows))
    show(
        as_json,
        {"prompts": len(asked)} | ({} if csv is None else {"csv": str(csv)}),
        "answers",
        rows,
    )
