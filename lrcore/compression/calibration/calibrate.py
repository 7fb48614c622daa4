"""Calibration: the moments of each layer on a text, cached on disk.

A pass over the windows of the text, layer by layer, collects the moments that all methods need, or
those of a single method. The cache key covers everything that the moments depend on; each set of
moments has its own folder, and a set that contains all moments of another one serves it, too.
"""

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from ... import data
from ...data.held_out import file_and_split
from ...layers.experts import COUNTS, OF_EXPERTS, expert_tap
from ...layers.image_tokens import highest_token, text_of
from ...layers.linalg import float64_device
from ...layers.statistics import (
    COMMON_TAPS,
    MEAN,
    SECOND,
    SQUARE,
    STREAM_TAPS,
    Moments,
    Need,
    activation_needs,
    missing_needs,
)
from ...methods import METHODS, find_method
from ...models.architectures import decoder_layers, residual_multiplier, text_config
from ...models.hub import DEMO_MODELS, locate
from ...models.images import load_images, text_encoder
from ...models.load import LoadedModel, read_tokenizer
from ...models.lora_import import is_adapter
from ...recipes.recipe import Recipe
from ...system.cache import hold
from ...system.files import cache_folder, cache_key
from ...system.hardware import hardware
from ...system.locks import Lock
from ...system.memory import raise_unless_free
from ...system.path_access import place_of
from ...system.progress import Progress, silent
from .collect import collect
from .moment_files import MomentsFile, Recollection, is_kept, layer_file, read_moments

# Windows of the text that the moments have not seen: 32 to measure evidence on and 32 to check the
# resulting plans. At least MIN_UNSEEN, even if the moments use fewer windows: the mean over one
# window has no standard error.
MIN_UNSEEN, MAX_UNSEEN = 16, 64
FORMAT = 6  # of the cached files; increase it when the meaning of the contents changes
SHORT_TEXT = 100_000  # characters that a preview tokenizes, in a few hundredths of a second
CHARACTERS_PER_TOKEN = 16  # more than the tokens of any language have on average
_INFLUENCES = frozenset((part, "influence") for part in STREAM_TAPS)


def all_needs() -> frozenset[Need]:
    """Return the union of the statistics that the methods need, and the influences for policies."""
    needs = _INFLUENCES.union(*(activation_needs(method.needs) for method in METHODS.values()))
    return needs - {(tap, SQUARE) for tap, statistic in needs if statistic == SECOND}


def method_needs(recipe: Recipe) -> frozenset[Need]:
    """Return the statistics that a recipe's method reads.

    Without those that only its options read, which `factorize` adds. Raises InputError for an
    unknown method or option.
    """
    row = find_method(recipe.method)
    reads = row.reads(row.choose(row.resolve_auto(recipe.options, recipe.budget)))
    return reads - missing_needs(reads, all_needs())


def _with_common_needs(needs: Iterable[Need]) -> frozenset[Need]:
    """Return the needs with those of the policies: influences, and squares for the outliers.

    A mean that `all_needs` has is added, too: sums with and without it are rounded differently.
    """
    needs = _INFLUENCES.union(needs, ((tap, SQUARE) for tap in COMMON_TAPS))
    means = {(tap, MEAN) for tap, statistic in needs if statistic in (SECOND, SQUARE)}
    needs |= means & all_needs()
    return needs - {(tap, SQUARE) for tap, statistic in needs if statistic == SECOND}


@dataclass(frozen=True, eq=False)
class Calibration:
    """The moments of each layer, cached on disk.

    key: hash of everything that the moments depend on. layers: number of layers. protocol: the same
    information in plain values. tokens: the windows [n, t], for methods and policies that run the
    model again. unseen_tokens: windows [m, t] of the same text that do not overlap these,
    m = 2 n limited to MIN_UNSEEN .. MAX_UNSEEN and to the length of the text. Token ids beyond the
    vocabulary are patches of images (see lrcore/layers/image_tokens.py).

    needs: the collected statistics. extra: folders of those that `add_statistics` collected,
    which are not in `folder`. gradients: folders of the
    statistics that calibration/gradients.py collected. locks: keep these folders in the cache.
    recollections: by folder, the function that collects a damaged file again.
    """

    folder: Path
    key: str
    layers: int
    protocol: dict[str, Any]
    device: str = "cpu"
    tokens: Any = field(default=None, repr=False)
    unseen_tokens: Any = field(default=None, repr=False)
    needs: frozenset[Need] = field(default_factory=all_needs, repr=False)
    extra: tuple[Path, ...] = ()
    gradients: tuple[Path, ...] = ()
    locks: tuple[Lock | None, ...] = field(default=(), repr=False)
    recollections: Mapping[Path, Recollection] = field(default_factory=dict, repr=False)

    def moments(self, layer: int) -> Moments:
        """Return the moments of a layer, read from disk onto the model's device.

        A damaged file is collected again; raises InputError if the model was deleted meanwhile.
        """
        parts = [self._read(folder, layer) for folder in (self.folder, *self.extra)]
        values = _chained(*(part.values for part in parts))
        moments = Moments(values, parts[0].tokens)
        return self.with_gradient_statistics(moments, layer)

    def with_gradient_statistics(self, moments: Moments, layer: int) -> Moments:
        """Return a layer's moments with the statistics of gradients, if any were collected."""
        statistics = [self._read(folder, layer).values for folder in reversed(self.gradients)]
        return Moments(_chained(*statistics, moments.values), moments.tokens)

    def text(self, tokenizer: Any, window: int = 0) -> str:
        """Return the text of a window, with "[image]" for each image."""
        return text_of(tokenizer, self.tokens[window])

    def _read(self, folder: Path, layer: int) -> Moments:
        return read_moments(layer_file(folder, layer), self.device, self.recollections.get(folder))

    def files(self, folder: Path) -> list[MomentsFile]:
        """Return the files of all layers in a folder of the calibration."""
        recollect = self.recollections.get(folder)
        layers = range(self.layers)
        return [MomentsFile.at(layer_file(folder, layer), recollect) for layer in layers]

    @cached_property
    def influence(self) -> dict[str, list[float]]:
        """Influence of each layer ("block"), attention and MLP: [L] each, in [0, 2]."""
        files = self.files(self.folder)
        return {
            part: [float(file.read((part, "influence"))) for file in files] for part in STREAM_TAPS
        }

    @cached_property
    def rare_experts(self) -> int:
        """Number of routed experts that see fewer tokens than their input is wide.

        Their moments include a sample of the other tokens (see lrcore/layers/experts.py).
        """
        count = 0
        for file in self.files(self.folder):
            if COUNTS in file.needs:
                first = ((expert_tap(tap, 0), "square") for tap in OF_EXPERTS)
                width = max(len(file.read(need)) for need in first)
                count += int((file.read(COUNTS) * file.tokens < width).sum())
        return count

    @property
    def block_influence(self) -> list[float]:
        """Block Influence of each layer, [L]."""
        return self.influence["block"]


# --- the calibration text ---


def make_calibration_windows(model: LoadedModel, recipe: Recipe) -> data.Windows:
    """Return the windows that a recipe calibrates on.

    Raises InputError if they exceed the model's context or vocabulary, or if the data set cannot be
    read.
    """
    texts = data.load_texts(recipe.data, role="calibration")
    return _make_windows(model, recipe, texts, text_encoder(model, texts.images))


def _make_windows(
    model: LoadedModel, recipe: Recipe, texts: data.Texts, encoder: Callable[..., Any]
) -> data.Windows:
    model.check_length(recipe.seq_len)
    windows = data.make_windows(
        texts, encoder, recipe.samples, recipe.seq_len, recipe.sampling, recipe.seed
    )
    windows = data.with_bos(windows, texts, model.tokenizer, recipe.bos)
    model.check_tokens(highest_token(windows.tokens))
    load_images(encoder, windows.tokens)
    return windows


@dataclass(frozen=True)
class TextPreview:
    """The beginning of a calibration text.

    beginning: the first `seq_len` tokens, decoded. With sampling "first" this is the first window,
    if the text is long enough. tokens: of a text of at most SHORT_TEXT characters; None for a
    longer text, and if unknown.
    """

    beginning: str = ""
    tokens: int | None = None


def preview_text(recipe: Recipe, tokenizer: Any = None) -> TextPreview:
    """Return the beginning of a recipe's calibration text.

    tokenizer: of the recipe's model; read from the model's folder if None. Nothing is downloaded or
    converted: the result is empty if the text or the model is not on this machine, or if the text
    has images. Raises InputError if text or tokenizer cannot be read.
    """
    if not _is_local_text(recipe.data):
        return TextPreview()
    if tokenizer is None:
        folder = place_of(recipe.model)
        is_model = folder.is_dir() and not is_adapter(folder)
        if recipe.model not in DEMO_MODELS and not is_model:
            return TextPreview()
        tokenizer = read_tokenizer(locate(recipe.model, recipe.revision))
    texts = data.load_texts(recipe.data, role="calibration")
    if texts.images:
        return TextPreview()
    text, length = texts.joined(), recipe.seq_len
    is_short = len(text) <= SHORT_TEXT
    size = len(text) if is_short else CHARACTERS_PER_TOKEN * length
    if data.is_rendered(texts, tokenizer):
        ids = data.tokenize_all(texts.first_conversations(size), tokenizer).ids
    else:
        ids = data.tokenize(text[:size], tokenizer).ids
    return TextPreview(text_of(tokenizer, ids[:length]), len(ids) if is_short else None)


def _is_local_text(name: str) -> bool:
    """Return whether a text, or each text of a mixture, is on this machine."""
    if file_and_split(name)[0]:
        return True
    names = (part.rpartition("*")[2].partition("/")[0].strip() for part in name.split("+"))
    return all(name in data.BUILTIN for name in names)


# --- collecting moments ---


def calibrate(
    model: LoadedModel,
    recipe: Recipe,
    progress: Progress | None = None,
    needs: Collection[Need] | None = None,
) -> Calibration:
    """Collect moments of the dense model; instant if they are cached.

    needs: (tap, statistic) pairs, such as those of a single method (`method_needs`); None collects
    the moments of all methods. Influences of the layers and squares of the inputs are always
    collected.

    The cache key covers model files, window tokens, dtype and file format. Cached layers are not
    collected again, so a canceled or killed pass continues at the layer it reached.

    Raises InputError as `make_calibration_windows` does, and ResourceError if the hidden states of
    the windows and the sums of a layer need more memory than is free on the model's device.
    """
    progress = progress or silent
    _check_memory(model, recipe)
    texts = data.load_texts(recipe.data, role="calibration")
    encoder = text_encoder(model, texts.images)
    windows = _make_windows(model, recipe, texts, encoder)
    dtype, multiplier = str(model.network.dtype), residual_multiplier(model.network)
    # Files written before the key covered the residual multiplier are valid for a multiplier of 1.
    parts = (FORMAT, model.fingerprint, windows.key, dtype, sorted(all_needs()))
    key = cache_key(*parts, *([] if multiplier == 1 else [multiplier]))
    layers = len(decoder_layers(model.network))
    requested = _with_common_needs(all_needs() if needs is None else needs)
    collected = _collected_needs(key, layers, requested)
    folder = _moments_folder(key, collected)
    protocol = windows.protocol | {
        "windows": len(windows.tokens),
        "tokens": windows.tokens.numel(),
        "dtype": str(model.network.dtype),
    }
    unseen_count = min(MAX_UNSEEN, max(MIN_UNSEEN, 2 * len(windows.tokens)))
    unseen_tokens = data.windows_aside(texts, encoder, windows, unseen_count)
    unseen_tokens = data.begin_with(unseen_tokens, data.bos_token(model.tokenizer, recipe.bos))
    load_images(encoder, unseen_tokens)
    locks = (hold(folder),)
    recollection = _collect_into(model, windows.tokens, collected, folder, progress)
    return Calibration(
        folder,
        key,
        layers,
        protocol,
        str(float64_device(model.network.device)),
        windows.tokens,
        unseen_tokens,
        collected,
        locks=locks,
        recollections={folder: recollection},
    )


def _collected_needs(key: str, layers: int, needs: frozenset[Need]) -> frozenset[Need]:
    """Return a cached set of statistics that contains `needs`, or `needs` if there is none."""
    for candidate in (*_sets_of_needs(), needs):
        folder = _moments_folder(key, candidate)
        if not missing_needs(needs, candidate) and _is_complete(folder, layers):
            return candidate
    return needs


def _sets_of_needs() -> Iterator[frozenset[Need]]:
    """Yield the statistics of all methods, and those of each method."""
    yield all_needs()
    for method in METHODS.values():
        yield _with_common_needs(activation_needs(method.needs))


def _is_complete(folder: Path, layers: int) -> bool:
    return all(is_kept(folder, layer) for layer in range(layers))


def _moments_folder(key: str, needs: frozenset[Need]) -> Path:
    name = key if needs == all_needs() else cache_key(key, sorted(needs))
    return cache_folder() / "moments" / name


def _collect_into(
    model: LoadedModel, tokens: Tensor, needs: frozenset[Need], folder: Path, progress: Progress
) -> Recollection:
    """Collect the statistics that a folder lacks; return the function that does so again."""
    collect(model, tokens, needs, folder, progress)
    recollect = partial(collect, tokens=tokens, needs=needs, folder=folder, progress=silent)
    return Recollection(model, recollect)


def _check_memory(model: LoadedModel, recipe: Recipe) -> None:
    width = text_config(model.network).hidden_size
    need = recipe.samples * recipe.seq_len * width * model.network.dtype.itemsize
    subject = f"Hidden states of {recipe.samples:,} windows of {recipe.seq_len:,} tokens"
    remedy = "Use fewer or shorter windows."
    raise_unless_free(need, subject, remedy, hardware(str(model.device)).free)


def add_statistics(
    model: LoadedModel,
    calibration: Calibration,
    needs: frozenset[Need],
    progress: Progress | None = None,
) -> Calibration:
    """Return the calibration with further statistics of its windows.

    Returns the calibration itself if it has them all.
    """
    needs = missing_needs(needs, calibration.needs)
    if not needs:
        return calibration
    folder = _moments_folder(calibration.key, needs)
    lock = hold(folder)
    recollection = _collect_into(model, calibration.tokens, needs, folder, progress or silent)
    return replace(
        calibration,
        needs=calibration.needs | needs,
        extra=(*calibration.extra, folder),
        locks=(*calibration.locks, lock),
        recollections={**calibration.recollections, folder: recollection},
    )


def statistics_tokens(calibration: Calibration, needs: frozenset[Need]) -> float:
    """Return how many tokens `add_statistics` runs through the model; 0 if the result is cached."""
    folder = _moments_folder(calibration.key, missing_needs(needs, calibration.needs))
    return 0.0 if _is_complete(folder, calibration.layers) else float(calibration.tokens.numel())


def _chained(*parts: Mapping[Need, Tensor]) -> Mapping[Need, Tensor]:
    """Return a mapping over several, without reading a value; the first one has precedence."""
    return ChainMap(*(cast(MutableMapping[Need, Tensor], part) for part in parts))
