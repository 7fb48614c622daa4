"""Command `export`: writes a Hugging Face folder or a GGUF file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..system.errors import InputError
from ..system.settings import check_settings, setting
from .arguments import AsJson, FolderOrRun, Loading
from .console import progress, show
from .flags import flags

app = typer.Typer()
DEFAULT_TYPE = "f16"  # of a GGUF file


@dataclass(frozen=True)
class ExportSettings:
    """Format and upload of an export. Raises InputError for incompatible settings."""

    format: str = setting(
        "auto",
        "{choices}: the target of the model's recipe; a folder; a folder for vLLM with equal heads "
        "in all layers; a file for llama.cpp with dense matrices; or a folder of the youtu "
        "architecture (latent attention). Other structures are multiplied out or padded with "
        "zeros, with a note.",
        ("auto", "transformers", "vllm", "gguf", "mla"),
    )
    type: str | None = setting(
        None,
        f"Of a GGUF file's matrices: {{choices}}. Default: {DEFAULT_TYPE}.",
        ("f32", "f16", "bf16", "q8_0"),
    )
    standard: bool = setting(
        False,
        "Standard architecture of transformers without custom code: other structures are "
        "multiplied out or padded with zeros.",
    )
    push_to_hub: str | None = setting(
        None, "Upload the folder to this repository.", metavar="OWNER/NAME"
    )
    public: bool = setting(False, "Make a new repository public.")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.format == "mla" and self.standard:
            raise InputError("The format mla is a standard architecture. Omit --standard.")
        if self.format == "vllm" and self.standard:
            raise InputError("vLLM also runs standard folders. Omit --format or --standard.")
        if self.format == "gguf" and (self.standard or self.push_to_hub):
            raise InputError(
                "--standard and --push-to-hub apply to folders, not to GGUF files. Omit them, and "
                "upload the file with `hf upload`."
            )
        if self.type and self.format not in ("auto", "gguf"):
            raise InputError(
                "--type applies to GGUF files; a folder has the dtype of the model or of --dtype. "
                "Omit --type, or add --format gguf."
            )
        if self.public and not self.push_to_hub:
            raise InputError("--public applies to uploads. Add --push-to-hub, or omit --public.")

    @property
    def target(self) -> str:
        """Target of `export_for`."""
        if self.standard:
            return "transformers-stock"
        return "vllm" if self.format == "vllm" else "transformers"

    def of(self, target: Any) -> "ExportSettings":
        """Return a copy with the format of a target, unless a format is set.

        Raises InputError for settings that the format excludes.
        """
        if self.format != "auto":
            return self
        kind = "transformers" if self.standard else target.format
        return replace(self, format=kind, standard=self.standard or target.standard)


@app.command()
@flags(loading=("dtype", "ratio"))
def export(
    model: FolderOrRun,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder, or file name with .gguf.")],
    how: ExportSettings,
    loading: Loading,
    result: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Output of `evaluate --json` for the model card; repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a Hugging Face folder, or a GGUF file.

    The folder loads without this package, with trust_remote_code, or with --standard without custom
    code. The output lists the changes, the size and the KV cache of the exported model.
    """

    progress.waits_for("load")
    import lrcore

    from ..checkpoints.export import check_repository, read_results, run_checkpoint
    from ..recipes.history import target_of

    if how.format != "auto":
        _check_output(out, how, result)
    if how.push_to_hub is not None:
        check_repository(how.push_to_hub)
    results = read_results(model, result or ())
    small = replace(loading, device="cpu").load(run_checkpoint(model))
    how = how.of(target_of(small.history))
    _check_output(out, how, result)
    if how.format == "gguf":
        values = _gguf(small, out, how.type or DEFAULT_TYPE)
        _show_exported(as_json, values)
        return
    from ..checkpoints.export import export_for

    if how.format == "mla":
        written: Any = lrcore.export_mla(small, out, results)
    else:
        written = export_for(small, out, how.target, results)
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
    _show_exported(as_json, values)


def _show_exported(as_json: bool, values: dict[str, Any]) -> None:
    """Print the values of an export; as text without evaluations and notes if there are none."""
    if not as_json:
        changes = "; ".join(values["notes"]) or None
        values = values | {"results": values.get("results") or None, "notes": changes}
    show(as_json, values)


def _check_output(out: Path, how: ExportSettings, results: Sequence[Path] | None) -> None:
    """Raise InputError if `out` cannot be written in the format, or has no card for results."""
    from ..checkpoints.gguf.export_gguf import check_gguf
    from ..checkpoints.output_folder import check_output_folder

    if how.format == "gguf":
        check_gguf(out, how.type or DEFAULT_TYPE)
        if results:
            raise InputError(
                "--result applies to the model card of a folder. Omit it for a GGUF file."
            )
    elif out.suffix == ".gguf" and not out.is_dir():
        raise InputError(
            f"'{out}' is the name of a GGUF file, but the export is a folder. Add --format gguf, "
            "or enter the name of a folder."
        )
    else:
        check_output_folder(out)


def _gguf(small: Any, out: Path, kind: str) -> dict[str, Any]:
    """Write a GGUF file and return the output of the command."""
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
