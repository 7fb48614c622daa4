"""The command that heals a compressed model. Its defaults are those of `Healing`."""

from pathlib import Path
from typing import Annotated

import typer

from ..compression.healing.healing import Healing
from .console import progress, show
from .measuring import AsJson, Device, Dtype

app = typer.Typer()


@app.command()
def heal(
    model: Annotated[
        str,
        typer.Argument(
            metavar="DIR_OR_RUN", help="Folder that `compress` wrote, or a run of the page."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the healed model to.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Text to train on. Default: that of the calibration.", show_default=False
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(help="Windows to train on, drawn at random.")
    ] = Healing.samples,
    seq_len: Annotated[int, typer.Option(help="Tokens per window.")] = Healing.seq_len,
    steps: Annotated[int, typer.Option(help="Steps of AdamW.")] = Healing.steps,
    batch: Annotated[int, typer.Option(help="Windows per step.")] = Healing.batch,
    lr: Annotated[
        float, typer.Option(help="Highest learning rate; latents take ten times as much.")
    ] = Healing.lr,
    beta: Annotated[
        float,
        typer.Option(help="Weight of the divergence from the dense model; 0: cross-entropy alone."),
    ] = Healing.beta,
    temperature: Annotated[
        float, typer.Option("--temperature", help="tau of the divergence, which counts beta tau^2.")
    ] = Healing.temperature,
    rotary_channel: Annotated[
        int,
        typer.Option(
            metavar="D_R", help="Of care: width of a new rotary channel per head; 0: none."
        ),
    ] = Healing.rotary_channel,
    train: Annotated[
        str,
        typer.Option(
            help="latents, factors (what compression changed), all, or auto (by the method)."
        ),
    ] = Healing.train,
    test: Annotated[
        str | None,
        typer.Option(
            help="Text to measure on. Default: the test split of the data.", show_default=False
        ),
    ] = None,
    test_samples: Annotated[
        int, typer.Option(help="Windows measured before and after; 0: none.")
    ] = Healing.test_samples,
    seed: Annotated[
        int, typer.Option(help="Of windows, their order and the new channel.")
    ] = Healing.seed,
    teacher: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="The dense model, where it has moved.", show_default=False
        ),
    ] = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train the factors of a compressed model against its dense one.

    Goes on where it was stopped; `evaluate` and `export` take DIR.
    """
    import lrcore
    from lrcore.checkpoints.checkpoint import check_target
    from lrcore.checkpoints.export import run_checkpoint

    check_target(out)
    asked = Healing(
        data,
        samples,
        seq_len,
        steps,
        batch,
        lr,
        beta,
        temperature,
        rotary_channel,
        train,
        test,
        test_samples,
        seed,
    )
    loaded = lrcore.load(run_checkpoint(model), dtype=dtype, device=device)
    state = out.expanduser().absolute().with_name(f".{out.name}.healing.safetensors")
    made = lrcore.heal(loaded, asked, teacher=teacher, state=state, progress=progress)
    folder = lrcore.save(made, out)
    state.unlink(missing_ok=True)
    told = made.report["healing"]
    if not as_json:  # a person reads neither curves nor protocols, nor what was not asked for
        told = {
            name: value for name, value in told.items() if not isinstance(value, list | dict | None)
        }
    show(
        as_json,
        {
            "out": str(folder),
            "healing": told,
            "parameters": made.size.parameters,
            "kv_bytes_per_token": made.size.kv_bytes,
        },
    )
