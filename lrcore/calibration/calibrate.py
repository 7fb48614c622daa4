"""Calibration: one pass, layer by layer, that collects the moments all methods need.

They are cached on disk under a key of everything they depend on.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from .. import data
from ..cache import hold
from ..experts import COUNTS, OF_EXPERTS, tap_of
from ..files import cache_folder, cache_key
from ..hardware import hardware
from ..image_tokens import highest_token, text_of
from ..locks import Lock
from ..memory import raise_unless_free
from ..methods import METHODS
from ..models.architectures import decoder_layers, residual_multiplier, text_config
from ..models.images import encoder_of, see
from ..models.load import LoadedModel
from ..precise import exact_device
from ..progress import Progress, silent
from ..recipe import Recipe
from ..statistics import PARTS, Moments, Need, of_activations
from .collect import collect
from .moment_files import MomentsFile, is_kept, layer_file, read_moments
from .remaking import Again

# Windows of the text that no moment has seen: 32 for evidence that is measured on them, and as many
# to check what that led to.
ASIDE = 64
LEAST_ASIDE = 16  # also where the moments are of fewer: a mean over one window has no error
FORMAT = 6  # of the cached files; increase it whenever what is collected changes its meaning


def all_needs() -> frozenset[Need]:
    """The statistics that the methods need together, and the influences for the policies."""
    return frozenset((part, "influence") for part in PARTS).union(
        *(of_activations(method.needs) for method in METHODS.values())
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """The moments of every layer, cached on disk.

    key: a hash of everything they depend on. layers: how many there are. protocol: the same as
    plain values. tokens: the windows [n, t], for methods and policies that run the model again.
    aside: windows of the same text that share no token with them, [m, t]: 2 n, but LEAST_ASIDE to
    ASIDE of them, as far as the text has them. Ids beyond the vocabulary are patches of images,
    which the model knows (see image_tokens.py).
    extra: folder of the statistics that `also` collected. gradients: folders of the statistics that
    calibration/gradients.py collected. held: keeps these folders in the cache. again: of each of
    them, what collects a damaged file of it again.
    """

    folder: Path
    key: str
    layers: int
    protocol: dict[str, Any]
    device: str = "cpu"
    tokens: Any = field(default=None, repr=False)
    aside: Any = field(default=None, repr=False)
    extra: Path | None = None
    gradients: tuple[Path, ...] = ()
    held: tuple[Lock | None, ...] = field(default=(), repr=False)
    again: Mapping[Path, Again] = field(default_factory=dict, repr=False)

    def moments(self, layer: int) -> Moments:
        """The moments of one layer, read from disk onto the model's device. What is damaged there
        is collected again; raises InputError where the model is gone.
        """
        own = self._read(self.folder, layer)
        if self.extra is not None:
            further = self._read(self.extra, layer)
            own = Moments(_together(further.values, own.values), own.tokens)
        return self.joined(own, layer)

    def joined(self, moments: Moments, layer: int) -> Moments:
        """A layer's moments with the statistics of gradients, where those were collected."""
        found = [self._read(folder, layer).values for folder in reversed(self.gradients)]
        return Moments(_together(*found, moments.values), moments.tokens)

    def text(self, tokenizer: Any, window: int = 0) -> str:
        """The text of a window, with "[image]" in the place of each image."""
        return text_of(tokenizer, self.tokens[window])

    def _read(self, folder: Path, layer: int) -> Moments:
        return read_moments(layer_file(folder, layer), self.device, self.again.get(folder))

    def files(self, folder: Path) -> list[MomentsFile]:
        """The files of all layers in one of the folders."""
        again = self.again.get(folder)
        return [MomentsFile.at(layer_file(folder, layer), again) for layer in range(self.layers)]

    @cached_property
    def influence(self) -> dict[str, list[float]]:
        """Influence of every layer ("block"), attention and MLP: [L] each, in [0, 2]."""
        files = self.files(self.folder)
        return {part: [float(file.read((part, "influence"))) for file in files] for part in PARTS}

    @cached_property
    def rare_experts(self) -> int:
        """How many routed experts other tokens stand in for, see lrcore/experts.py."""
        rare = 0
        for file in self.files(self.folder):
            if COUNTS in file.needs:
                first = ((tap_of(tap, 0), "square") for tap in OF_EXPERTS)
                width = max(len(file.read(need)) for need in first)
                rare += int((file.read(COUNTS) * file.tokens < width).sum())
        return rare

    @property
    def block_influence(self) -> list[float]:
        """Block Influence of every layer, [L]."""
        return self.influence["block"]


def make_calibration_windows(model: LoadedModel, recipe: Recipe) -> data.Windows:
    """The windows a recipe calibrates on.

    Raises InputError where they exceed the model's context or vocabulary, or the data set cannot be
    read.
    """
    texts = data.load_texts(recipe.data, role="calibration")
    return _windows(model, recipe, texts, encoder_of(model, texts.images))


def _windows(
    model: LoadedModel, recipe: Recipe, texts: data.Texts, encoder: Callable[..., Any]
) -> data.Windows:
    model.check_length(recipe.seq_len)
    windows = data.make_windows(
        texts, encoder, recipe.samples, recipe.seq_len, recipe.sampling, recipe.seed
    )
    model.check_tokens(highest_token(windows.tokens))
    see(encoder, windows.tokens)
    return windows


def calibrate(model: LoadedModel, recipe: Recipe, progress: Progress | None = None) -> Calibration:
    """Collect the moments that every method needs from the dense model; instant when cached.

    The key covers model files, window tokens, dtype, needs and file format. Cached layers are not
    collected again, so a cancelled or killed pass continues where it stopped. Raises InputError as
    `make_calibration_windows` does, and Shortage where the hidden states of the windows, or what
    is collected of a layer beside them, take more memory than is free on the model's device.
    """
    progress = progress or silent
    _check_memory(model, recipe)
    texts = data.load_texts(recipe.data, role="calibration")
    encoder = encoder_of(model, texts.images)
    windows = _windows(model, recipe, texts, encoder)
    needs = all_needs()
    dtype, times = str(model.network.dtype), residual_multiplier(model.network)
    # the multiplier: what was collected of one other than 1 before it counted is not read
    parts = (FORMAT, model.fingerprint, windows.key, dtype, sorted(needs))
    key = cache_key(*parts, *([] if times == 1 else [times]))
    folder = cache_folder() / "moments" / key
    layers = len(decoder_layers(model.network))
    protocol = windows.protocol | {
        "windows": len(windows.tokens),
        "tokens": windows.tokens.numel(),
        "dtype": str(model.network.dtype),
    }
    wanted = min(ASIDE, max(LEAST_ASIDE, 2 * len(windows.tokens)))
    aside = data.windows_aside(texts, encoder, windows, wanted)
    see(encoder, aside)
    held = (hold(folder),)
    again = {folder: _collect(model, windows.tokens, needs, folder, progress)}
    device = str(exact_device(model.network.device))
    return Calibration(
        folder, key, layers, protocol, device, windows.tokens, aside, held=held, again=again
    )


def _collect(
    model: LoadedModel, tokens: Tensor, needs: frozenset[Need], folder: Path, progress: Progress
) -> Again:
    """Collect what is not in the folder; what does so once more."""
    collect(model, tokens, needs, folder, progress)
    once_more = partial(collect, tokens=tokens, needs=needs, folder=folder, progress=silent)
    return Again(model, once_more)


def _check_memory(model: LoadedModel, recipe: Recipe) -> None:
    width = text_config(model.network).hidden_size
    need = recipe.samples * recipe.seq_len * width * model.network.dtype.itemsize
    what = f"Hidden states of {recipe.samples:,} windows of {recipe.seq_len:,} tokens"
    remedy = "Use fewer or shorter windows (samples, seq_len)."
    raise_unless_free(need, what, remedy, hardware(str(model.device)).free)


def also(
    model: LoadedModel,
    calibration: Calibration,
    needs: frozenset[Need],
    progress: Progress | None = None,
) -> Calibration:
    """The calibration with further statistics of its windows, for options that need them.

    The calibration itself where needs are empty.
    """
    if not needs:
        return calibration
    folder = _further(calibration, needs)
    held = hold(folder)
    again = _collect(model, calibration.tokens, needs, folder, progress or silent)
    known = {**calibration.again, folder: again}
    return replace(calibration, extra=folder, held=(*calibration.held, held), again=known)


def tokens_run(calibration: Calibration, needs: frozenset[Need]) -> float:
    """The tokens that `also` runs through the model; 0 where what it gives is on disk."""
    folder = _further(calibration, needs)
    if all(is_kept(folder, layer) for layer in range(calibration.layers)):
        return 0.0
    return float(calibration.tokens.numel())


def _further(calibration: Calibration, needs: frozenset[Need]) -> Path:
    """Where further statistics are kept."""
    return cache_folder() / "moments" / cache_key(calibration.key, sorted(needs))


def _together(*parts: Mapping[Need, Tensor]) -> Mapping[Need, Tensor]:
    """Statistics of several mappings, of those with the same name the first; none is read yet."""
    return ChainMap(*(cast(MutableMapping[Need, Tensor], one) for one in parts))
