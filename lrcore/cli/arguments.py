"""Arguments of several commands: models, loading, GPUs and clusters, and trackio."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..models.hub import locate_local
from ..recipes.recipe import Recipe
from ..system.errors import InputError
from ..system.settings import setting, settings_of
from .console import progress, say

_SOURCE = {
    name: about.about for name, about in settings_of(Recipe).items() if about.group == "source"
}

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Built-in model, folder, .gguf file or hub id.")
]
ModelOrFolder = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_DIR",
        help="Built-in model, folder (compressed or not), .gguf file or hub id.",
    ),
]
FolderOrRun = Annotated[
    str,
    typer.Argument(metavar="DIR_OR_RUN", help="Folder that `compress` wrote, or a run."),
]
Batch = Annotated[int, typer.Option(help="Windows per forward pass.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ToTrackio = Annotated[
    str | None,
    typer.Option(
        "--trackio",
        metavar="PROJECT",
        help="Also write the results to trackio's local store.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Loading:
    """Loading of models. dtype None: float32 for dense models, the stored dtype for checkpoints."""

    revision: str | None = setting(None, _SOURCE["revision"])
    dtype: str | None = setting(None, _SOURCE["dtype"])
    device: str = setting("auto", _SOURCE["device"])
    offload: bool = setting(False, _SOURCE["offload"])
    merge_factors: bool = setting(
        False,
        "Multiply factors, or store their identity blocks, if this speeds up decoding on this "
        "machine; needs memory.",
    )
    ratio: float | None = setting(
        None, "Cut a nested checkpoint (compress --nested) to this ratio."
    )

    def load(self, model: str) -> Any:
        """Load a model by name. Raises InputError like `lrcore.load` and `lrcore.merge_factors`."""
        locate_local(model, self.revision)  # checks the name before the import of torch
        progress.waits_for("load")
        import lrcore

        location = self.dtype, self.device, self.offload
        loaded = lrcore.load(model, self.revision, *location, ratio=self.ratio)
        return with_note(lrcore.merge_factors(loaded) if self.merge_factors else loaded)


def entries(text: str) -> list[str]:
    """Return the entries of a list. Raises InputError for an empty entry."""
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise InputError(f"'{text}' is not a valid list. Separate entries by commas, such as a,b.")
    return entries


def numbers(kind: Callable[[str], Any], rule: str) -> Callable[[str], list[Any]]:
    """Return a reader of lists of numbers; rule: first part of the error message.

    The reader raises InputError.
    """

    def read(text: str) -> list[Any]:
        try:
            return [kind(entry) for entry in entries(text)]
        except ValueError:
            raise InputError(f"{rule}; got '{text}'.") from None

    return read


@dataclass(frozen=True)
class Sharing:
    """The GPUs or machines that share the work of a command, without effect on results beyond
    rounding.
    """

    gpus: str = setting(
        "auto",
        "GPUs of this machine that share the work: all, a number, or indices such as 0,2; auto: "
        "all, if there are several and Ray is installed.",
    )
    cluster: str | None = setting(
        None,
        "Work on a Ray cluster: auto, host:port or ray://host:port.",
        metavar="ADDRESS",
    )

    def workers(self, device: str) -> AbstractContextManager[None]:
        """Return the context in which the GPUs or machines share the work.

        device: that of the model. Raises InputError for an invalid choice.
        """
        progress.waits_for("load")  # the next lines import torch
        if self.cluster is None:
            return self._on_gpus(device)
        if self.gpus != "auto":
            raise InputError("--gpus is for this machine, --cluster for several. Omit one of them.")
        from ..runs.cluster.ray_engine import on_cluster

        return on_cluster(self.cluster)

    def _on_gpus(self, device: str) -> AbstractContextManager[None]:
        from ..runs.cluster.gpus import about_unused, on_gpus

        note = about_unused(self.gpus, device)
        if note:
            say(f"note: {note}")
        return on_gpus(self.gpus, device)


def make_tracker(project: str | None) -> Any:
    """Return the tracker of a trackio project, or None. Raises InputError without trackio."""
    if project is None:
        return None
    from ..runs.tracking import Tracker

    return Tracker(project)


def load_dense(recipe: Recipe) -> Any:
    """Load the dense model of a recipe. Raises InputError like `lrcore.load`."""
    progress.waits_for("load")
    import lrcore

    return with_note(
        lrcore.load(recipe.model, recipe.revision, recipe.dtype, recipe.device, recipe.offload)
    )


def with_note(model: Any) -> Any:
    """Print the note of a loaded model, if any, and return the model."""
    progress.clear()
    if model.note:
        say(f"note: {model.name}: {model.note}")
    return model
