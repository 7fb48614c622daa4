"""What several commands take: the model, how it is loaded, where figures go."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..models.hub import on_this_machine
from ..recipe import Recipe
from ..settings import setting, settings_of
from .console import progress, say

_SOURCE = {name: one.about for name, one in settings_of(Recipe).items() if one.group == "source"}

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
    typer.Argument(
        metavar="DIR_OR_RUN", help="Folder that `compress` wrote, or a run of the page."
    ),
]
Batch = Annotated[int, typer.Option(help="Windows per forward pass.")]
CLUSTER = "Work on a Ray cluster: auto, host:port or ray://host:port."
OnCluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help=CLUSTER, show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ToTrackio = Annotated[
    str | None,
    typer.Option(
        "--trackio",
        metavar="PROJECT",
        help="Keep the figures in trackio's local store too.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Loading:
    """How a model is loaded. dtype None: float32 for a dense model, as saved for a checkpoint."""

    revision: str | None = setting(None, _SOURCE["revision"])
    dtype: str | None = setting(None, _SOURCE["dtype"])
    device: str = setting("auto", _SOURCE["device"])
    offload: bool = setting(False, _SOURCE["offload"])
    merge_factors: bool = setting(
        False,
        "Multiply factors out, or fill in their identity blocks, where this machine decodes "
        "faster so; takes memory.",
    )

    def load(self, model: str) -> Any:
        """The model of that name.

        Raises InputError as `lrcore.load` and `lrcore.merge_factors` do.
        """
        on_this_machine(model, self.revision)  # its mistakes are said before torch is imported
        progress.waits_for("load")
        import lrcore

        loaded = lrcore.load(model, self.revision, self.dtype, self.device, self.offload)
        return noted(lrcore.merge_factors(loaded) if self.merge_factors else loaded)


def on_cluster(address: str | None) -> AbstractContextManager[None]:
    """Inside, units of work are done by the workers of a cluster, where an address is given.

    Raises InputError as `lrcore.on_cluster` does.
    """
    if address is None:
        return nullcontext()
    import lrcore

    return lrcore.on_cluster(address)


def load_dense(recipe: Recipe) -> Any:
    """The dense model of a recipe. Raises InputError as `lrcore.load` does."""
    progress.waits_for("load")
    import lrcore

    return noted(
        lrcore.load(recipe.model, recipe.revision, recipe.dtype, recipe.device, recipe.offload)
    )


def noted(model: Any) -> Any:
    """The same loaded model, whose note was said where it has one."""
    progress.clear()
    if model.note:
        say(f"note: {model.name}: {model.note}")
    return model
