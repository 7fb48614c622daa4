"""Calibration: one streamed pass that collects what all methods need, layer by layer, kept on
disk under a key of all it depends on.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from .. import data
from ..errors import InputError
from ..files import cache_folder, cache_key, draft_of
from ..methods import METHODS
from ..models.architectures import decoder_layers
from ..models.layers import clone
from ..models.load import LoadedModel
from ..models.stream import LayerStream
from ..modules.sliced import has_residual_matrices
from ..progress import Progress, silent
from ..recipe import Recipe
from ..statistics import PARTS, Moments, Need
from ..tensor_files import write_tensors

FORMAT = 3  # of the cached files; raise it whenever what is collected changes its meaning


def all_needs() -> frozenset[Need]:
    """What the methods together read, and the influences for the policies: collected once, used
    by every method and ratio.
    """
    return frozenset((part, "influence") for part in PARTS).union(
        *(method.needs for method in METHODS.values())
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """The moments of every layer, on disk.

    key names all they depend on; protocol says it in words; layers is their number.
    """

    folder: Path
    key: str
    layers: int
    protocol: dict
    device: str = "cpu"
    tokens: object = field(
        default=None, repr=False
    )  # the windows [n, t], for methods and policies that run the model again
    extra: Path | None = None  # the folder of what `also` has collected besides
    gradients: Path | None = (
        # the folder of what lrcore/calibration/gradients.py has collected besides, where it was
        # asked for
        None
    )

    def moments(self, layer: int) -> Moments:
        """The moments of one layer, read from disk onto the model's device."""
        own, *more = (
            read_moments(layer_file(folder, layer), self.device)
            for folder in (self.folder, self.extra)
            if folder
        )
        return self.joined(
            Moments({**own.values, **more[0].values}, own.tokens) if more else own, layer
        )

    def joined(self, moments: Moments, layer: int) -> Moments:
        """These moments of a layer, and the statistics of the dense model's gradients where they
        were collected.
        """
        if self.gradients is None:
            return moments
        return Moments(
            {
                **moments.values,
                **read_moments(layer_file(self.gradients, layer), self.device).values,
            },
            moments.tokens,
        )

    @cached_property
    def influence(self) -> dict[str, list[float]]:
        """Influence of every layer ("block"), of its attention and of its MLP, [L] each, every
        entry in [0, 2].
        """
        files = [layer_file(self.folder, layer) for layer in range(self.layers)]
        return {part: [_read_one(file, (part, "influence")) for file in files] for part in PARTS}

    @property
    def block_influence(self) -> list[float]:
        """Block Influence of every layer, [L]."""
        return self.influence["block"]


def make_calibration_windows(model: LoadedModel, recipe: Recipe) -> data.Windows:
    """The windows a recipe calibrates on.

    Raises InputError where they are longer than the model's context.
    """
    model.check_length(recipe.seq_len)
    texts = data.load_texts(recipe.data, role="calibration")
    return data.make_windows(
        texts, model.tokenizer, recipe.samples, recipe.seq_len, recipe.sampling, recipe.seed
    )


def calibrate(model: LoadedModel, recipe: Recipe, progress: Progress | None = None) -> Calibration:
    """Collect the moments that every method needs from the dense model; instant where they are on
    disk already.

    The key covers model files, window tokens, dtype, needs and file format. Layers already on disk
    are not collected again, so a cancelled or killed pass goes on where it stopped. Raises
    InputError for a model sliced with a rotation per block.
    """
    progress = progress or silent
    if has_residual_matrices(model.network):
        raise InputError(
            f"The residual stream of '{model.name}' is in another basis before every component, "
            "and no method knows of that. Compress the "
            "dense model, or one sliced with one rotation for all."
        )
    windows = make_calibration_windows(model, recipe)
    needs = all_needs()
    key = cache_key(FORMAT, model.fingerprint, windows.key, str(model.network.dtype), sorted(needs))
    folder = cache_folder() / "moments" / key
    layers = len(decoder_layers(model.network))
    protocol = windows.protocol | {
        "windows": len(windows.tokens),
        "tokens": windows.tokens.numel(),
        "dtype": str(model.network.dtype),
    }
    calibration = Calibration(
        folder, key, layers, protocol, str(model.network.device), windows.tokens
    )
    _collect(model, windows.tokens, needs, folder, progress)
    return calibration


def also(
    model: LoadedModel,
    calibration: Calibration,
    needs: frozenset[Need],
    progress: Progress | None = None,
) -> Calibration:
    """The calibration with further statistics of its own windows, for the few choices that read
    them; itself where there are none.
    """
    if not needs:
        return calibration
    folder = cache_folder() / "moments" / cache_key(calibration.key, sorted(needs))
    _collect(model, calibration.tokens, needs, folder, progress or silent)
    return replace(calibration, extra=folder)


def _collect(
    model: LoadedModel, tokens: Tensor, needs: frozenset[Need], folder: Path, progress: Progress
) -> None:
    """Pass the windows [n, t] through the model and write the moments of every layer that is not
    in the folder yet.
    """
    layers = len(decoder_layers(model.network))
    missing = [layer for layer in range(layers) if not layer_file(folder, layer).is_file()]
    if missing:
        stream = LayerStream(clone(model.network), tokens)
        for layer in range(missing[-1] + 1):
            progress("calibrate", layer, layers)
            moments = stream.run(layer, needs if layer in missing else ())
            if moments is not None:
                write_moments(moments, layer_file(folder, layer))
            del moments  # before the next layer's are made
    progress("calibrate", layers, layers)


def layer_file(folder: Path, layer: int) -> Path:
    return folder / f"layer-{layer:04d}.safetensors"


def write_moments(moments: Moments, path: Path) -> None:
    """Write the file whole, or not at all."""
    tensors = {f"{tap}.{statistic}": value for (tap, statistic), value in moments.values.items()}
    with draft_of(path) as draft:
        write_tensors(draft, tensors, {"tokens": str(moments.tokens)})


def read_moments(path: Path, device: str = "cpu") -> Moments:
    """The inverse of `write_moments`."""
    with safe_open(path, "pt", device=device) as file:
        values = {tuple(name.split(".")): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return Moments(values, int(file.metadata()["tokens"]))


def _read_one(path: Path, need: Need) -> float:
    with safe_open(path, "pt") as file:
        return float(file.get_tensor(".".join(need)))
