"""The commands that measure models. Heavy imports wait until a command runs."""

from typing import Annotated

import typer

from .console import progress, show

app = typer.Typer()

ModelOrFolder = Annotated[str, typer.Argument(metavar="MODEL_OR_DIR", help="Demo model, folder (compressed or not) or hub id.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16, float64, or auto (as stored).")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
TestData = Annotated[str, typer.Option(help="Text to score: built-in name, file, or name:config:split.")]
Windows = Annotated[int | None, typer.Option("--samples", help="Number of windows (or documents). Default: all.", show_default=False)]
WindowLength = Annotated[int | None, typer.Option(help="Tokens per window. Default: the protocol's.", show_default=False)]
WindowSampling = Annotated[str, typer.Option(help="Which windows: first or random.")]
WindowSeed = Annotated[int, typer.Option(help="Seed of the random choice.")]
Batch = Annotated[int, typer.Option(help="Windows per forward pass.")]
ProtocolName = Annotated[str, typer.Option("--protocol", help="windows, gptq-2048, gptq-2048-c4, gptq-2048-ptb, strided or lm-eval-word.")]
Stride = Annotated[int | None, typer.Option(help="Of protocol strided. Default: half a window.", show_default=False)]


@app.command()
def evaluate(
    model: ModelOrFolder, data: TestData = "stories", samples: Windows = None, seq_len: WindowLength = None,
    sampling: WindowSampling = "first", seed: WindowSeed = 0, batch: Batch = 8, protocol: ProtocolName = "windows",
    stride: Stride = None, revision: Revision = None, dtype: Dtype = None, device: Device = "auto", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure perplexity by a named protocol. On the test split; by default non-overlapping full windows, mean token loss, exp."""
    import lrcore

    loaded = lrcore.load(model, revision, dtype, device)
    found = lrcore.evaluate(loaded, data, samples, seq_len, sampling, seed, batch, progress, protocol, stride)
    show(as_json, found.to_dict())
