"""The command that writes a Hugging Face folder or a GGUF file.

Heavy imports wait until it runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..settings import check_settings, setting
from .arguments import AsJson, FolderOrRun, Loading
from .console import progress, show
from .flags import flags

app = typer.Typer()
TYPE = "f16"  # of a GGUF file where none is named


@dataclass(frozen=True)
class Written:
    """What is written, and where it is uploaded. Raises InputError for what excludes another."""

    format: str = setting(
        "auto",
        "{choices}: what the model's recipe has as target; a folder; one for vLLM, whose heads are "
        "alike in all layers; a file for llama.cpp, whose matrices are dense; or a folder of a "
        "youtu, latent attention that transformers has. What has no place there is multiplied out "
        "or filled with zeros, and the command says so.",
        ("auto", "transformers", "vllm", "gguf", "mla"),
    )
    type: str | None = setting(
        None,
        f"Of a GGUF file's matrices: {{choices}}. Default: {TYPE}.",
        ("f32", "f16", "bf16", "q8_0"),
    )
    stock: bool = setting(
        False,
        "An architecture of transformers, without code: what it has no place for is multiplied out "
        "or filled with zeros.",
    )
    push_to_hub: str | None = setting(
        None, "Upload the folder to this repository too.", metavar="OWNER/NAME"
    )
    public: bool = setting(False, "Make a new repository public.")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.format == "mla" and self.stock:
            raise InputError("A youtu is stock already. Leave out --stock.")
        if self.format == "vllm" and self.stock:
            raise InputError("vLLM takes a stock folder as it is. Leave out --format or --stock.")
        if self.format == "gguf" and (self.stock or self.push_to_hub):
            raise InputError(
                "--stock and --push-to-hub are for folders; a GGUF file is one file. Leave them "
                "out, and upload the file with `hf upload`."
            )
        if self.type and self.format not in ("auto", "gguf"):
            raise InputError(
                "--type is for the matrices of a GGUF file; a folder keeps those of the model, or "
                "what --dtype says. Leave out --type, or add --format gguf."
            )
        if self.public and not self.push_to_hub:
            raise InputError("--public is for an upload. Add --push-to-hub, or leave it out.")

    @property
    def target(self) -> str:
        """Of `lrcore.export_for`."""
        if self.stock:
            return "transformers-stock"
        return "vllm" if self.format == "vllm" else "transformers"

    def of(self, target: Any) -> "Written":
        """With the format of a `lrcore.targets.Target` where none is named; --stock names one.

        Raises InputError for what that format excludes.
        """
        if self.format != "auto":
            return self
        kind = "transformers" if self.stock else target.format
        return replace(self, format=kind, stock=self.stock or target.stock)


@app.command()
@flags(loading=("dtype",))
def export(
    model: FolderOrRun,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder to write, or file that ends in .gguf.")
    ],
    how: Written,
    loading: Loading,
    result: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="What `evaluate --json` printed, for the card; repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a Hugging Face folder, or a GGUF file.

    The folder loads without this project, by trust_remote_code or, with --stock, without any code.
    Says what had to be done to the model, and what size and cache remain.
    """
    progress.waits_for("load")
    import lrcore
    from lrcore.checkpoints.export import check_repository, read_results, run_checkpoint
    from lrcore.history import target_of

    if how.format != "auto":
        _check_place(out, how, result)
    if how.push_to_hub is not None:
        check_repository(how.push_to_hub)
    results = read_results(model, result or ())
    small = replace(loading, device="cpu").load(run_checkpoint(model))
    how = how.of(target_of(small.history))
    _check_place(out, how, result)
    if how.format == "gguf":
        values = _gguf(small, out, how.type or TYPE)
        show(as_json, values if as_json else values | {"notes": "; ".join(values["notes"])})
        return
    if how.format == "mla":
        written: Any = lrcore.export_mla(small, out, results)
    else:
        written = lrcore.export_for(small, out, how.target, results)
    repository = how.push_to_hub
    if repository:
        repository = lrcore.push(written.path, repository, private=not how.public)
    values = {
        "out": str(written.path),
        "results": len(results),
        "repository": repository,
        "parameters": written.parameters,
        "kv_values_per_token": written.kv_values,
        "notes": list(written.notes),
    }
    show(as_json, values if as_json else values | {"notes": "; ".join(values["notes"])})


def _check_place(out: Path, how: Written, results: Sequence[Path] | None) -> None:
    """Raise InputError where nothing of that format can be written to `out`, or it has no card for
    results.
    """
    from lrcore.checkpoints.gguf_file import check_gguf
    from lrcore.checkpoints.out import check_out

    if how.format == "gguf":
        check_gguf(out, how.type or TYPE)
        if results:
            raise InputError("--result is for the card of a folder, and a GGUF file has none.")
    elif out.suffix == ".gguf" and not out.is_dir():
        raise InputError(
            f"'{out}' is the name of a GGUF file, and this writes a folder. Add --format gguf, or "
            "name a folder."
        )
    else:
        check_out(out)


def _gguf(small: Any, out: Path, kind: str) -> dict[str, Any]:
    """Write a GGUF file; what is shown of it."""
    import lrcore

    written = lrcore.export_gguf(small, out, kind)
    return {
        "out": str(written.path),
        "architecture": written.architecture,
        "type": written.kind,
        "megabytes": written.bytes / 1e6,
        "parameters": written.parameters,
        "kv_values_per_token": written.kv_values,
        "notes": list(written.notes),
    }
