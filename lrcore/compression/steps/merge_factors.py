"""The fastest form of factored projections: unchanged, multiplied out, or without identity blocks.

In no paper. A pair of factors has fewer multiply-adds than the matrix, but needs two products: with
few tokens at once, the calls take longer than the multiply-adds. An identity block saves some
multiply-adds, but the selection of columns takes longer than it saves.
"""

import math
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...layers.forms import Blocks, Matrix, SparseCodes, count, dense, memory_of
from ...layers.layer import Layer, Linear, LowRank, Projection, Stored
from ...layers.modules.projections import projection_modules
from ...models.architectures import decoder_layers
from ...models.layers import clone, device_of, read_exact, write_layer
from ...models.load import LoadedModel
from ...models.model_size import count_account
from ...system.cancellation import unchecked
from ...system.errors import InputError
from ...system.hardware import seconds_now
from ...system.memory import free_memory, raise_unless_free
from ...system.progress import Progress, silent
from ...system.settings import check_least
from .derived_models import compare_size, derive_model

ROUNDS = 9  # alternations of the forms; the result is the median


def merge_factors(
    model: LoadedModel, tokens: int = 1, progress: Progress | None = None
) -> LoadedModel:
    """Return the model with the fastest form of each factored projection on the device.

    Factors and sparse codes may be multiplied out, W = U V, or identity blocks filled in. The model
    itself is returned if nothing is faster, and is never changed. For running a model: merged
    factors need more memory, at most that of the dense matrix, which `size` and `account` count.

    tokens: number of tokens per call; 1 for decoding one sequence. During the measurement the other
    forms of all factors are in memory. Cached latents, quantized and sparse matrices, and experts
    are not merged, and narrower heads and MLPs stay narrower. Outputs differ by rounding.

    Raises InputError for tokens below 1 and for offloaded layers, and ResourceError if the memory
    does not suffice for the matrices.
    """
    check_least("tokens", tokens, 1)
    if model.offloaded:
        raise InputError(
            "Factors of offloaded layers cannot be merged: most time is spent on reading them. "
            "Load the model without offload."
        )
    progress, network = progress or silent, clone(model.network)
    layers = [read_exact(network, index) for index in range(len(decoder_layers(network)))]
    _check_memory(network, layers)
    fill_in = _FillIn()
    factored = [
        _Factored(index, name, value, fill_in.alternatives(value))
        for index, layer in enumerate(layers)
        for name, value in _factored(layer)
    ]
    merged: dict[int, dict[str, Projection]] = {}
    for projection, form in _fastest(factored, _inputs(network, factored, tokens), progress):
        merged.setdefault(projection.layer, {})[projection.name] = form
    if not merged:
        return model
    for index, changed in merged.items():
        write_layer(network, layers[index].with_matrices(**changed))
    return _merged_model(model, network, merged)


@dataclass(frozen=True, eq=False)
class _Factored:
    """A projection of a decoder layer, and alternative forms that compute the same.

    The alternatives are the matrix, and the factors without identity blocks if that can be faster.
    """

    layer: int
    name: str
    value: LowRank | Stored
    alternatives: tuple[Projection, ...]

    @property
    def forms(self) -> tuple[Projection, ...]:
        """The original form, then the alternatives."""
        return self.value, *self.alternatives

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""
        return _shape(self.value)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for projections that take the same time."""
        if isinstance(self.value, Stored):
            return self.shape, type(self.value.form), count(self.value.form)
        parts = (self.value.down, self.value.up)
        return self.shape, self.value.rank, *((type(part), count(part)) for part in parts)


def _factored(layer: Layer) -> Iterator[tuple[str, LowRank | Stored]]:
    """Yield name and value of the projections of a layer that may be merged."""
    latents = [layer.attention.cached_latent(name) for name in "kv"]
    for name, value in layer.matrices().items():
        if not isinstance(value, Linear) and value not in latents and _plain(value):
            yield name, value


def _check_memory(network: PreTrainedModel, layers: Sequence[Layer]) -> None:
    """Raise ResourceError if the alternative forms need more memory than is free."""
    values = [value for layer in layers for _, value in _factored(layer)]
    numbers = sum(math.prod(_shape(value)) + _filled_size(value) for value in values)
    if device_of(network).type == "cpu":
        remedy = "Run the model with its factors."
        need = numbers * network.dtype.itemsize
        raise_unless_free(need, "The matrices of the factors", remedy, free_memory())


def _filled_size(value: LowRank | Stored) -> int:
    """Return the number of entries of factors with filled-in identity blocks.

    0 if they have no identity blocks, or not fewer entries than the matrix.
    """
    if isinstance(value, Stored) or not any(
        isinstance(part, Blocks) for part in (value.down, value.up)
    ):
        return 0
    numbers = value.rank * sum(_shape(value))
    return numbers if numbers < math.prod(_shape(value)) else 0


def _shape(value: LowRank | Stored) -> tuple[int, int]:
    """Return [out, in] of a projection."""
    if isinstance(value, Stored):
        return value.form.shape
    return value.up.shape[0], value.down.shape[1]


def _plain(value: LowRank | Stored) -> bool:
    """Return whether no part is quantized, 2:4 sparse or a sparse term: merging would lose the
    smaller size. Sparse codes are factors, whose product is a dense matrix.
    """
    if isinstance(value, Stored):
        return isinstance(value.form, Blocks)
    mergeable = Tensor | Blocks | SparseCodes
    return value.sparse is None and all(isinstance(p, mergeable) for p in (value.down, value.up))


def _product(value: LowRank | Stored) -> Tensor:
    """Return the matrix [out, in] in the dtype of the factors, computed in float32 at least."""
    if isinstance(value, Stored):
        return dense(value.form)
    down, up = dense(value.down), dense(value.up)
    wider = torch.promote_types(down.dtype, torch.float32)
    return (up.to(wider) @ down.to(wider)).to(down.dtype)


class _FillIn:
    """Factors with filled-in identity blocks; a part that projections share stays one tensor."""

    def __init__(self) -> None:
        self._cache: dict[Hashable, Tensor] = {}

    def alternatives(self, value: LowRank | Stored) -> tuple[Projection, ...]:
        """Return the alternative forms of a projection, see `_Factored`."""
        matrix = Linear(_product(value), value.bias)
        if isinstance(value, Stored) or not _filled_size(value):
            return (matrix,)
        return matrix, LowRank(self._filled(value.down), self._filled(value.up), value.bias)

    def _filled(self, part: Matrix) -> Tensor:
        if isinstance(part, Tensor):
            return part
        key = memory_of(part)
        if key not in self._cache:
            self._cache[key] = dense(part).contiguous()
        return self._cache[key]


def _inputs(
    network: PreTrainedModel, factored: Sequence[_Factored], tokens: int
) -> dict[int, Tensor]:
    """Return inputs of ones, [1, tokens, in], for each width."""
    device = device_of(network)
    return {
        width: torch.ones(1, tokens, width, dtype=network.dtype, device=device)
        for width in {projection.shape[1] for projection in factored}
    }


def _fastest(
    factored: Sequence[_Factored], inputs: Mapping[int, Tensor], progress: Progress
) -> Iterator[tuple[_Factored, Projection]]:
    """Yield the projections with an alternative as the fastest form, and that form.

    The forms of all projections run in sequence, as in a forward pass, so that none stays in
    the processor's cache. Projections of the same kind, for example in most layers if ranks are
    uniform, are decided together, because a single call is too short for the resolution of the
    clock.
    """
    times = {p.kind: [list[float]() for _ in p.forms] for p in factored}
    count = max(map(len, times.values()), default=0)
    variants = [_Variant(factored, number, inputs) for number in range(count)]
    for turn in range(ROUNDS + 1):
        progress("merge", turn, ROUNDS + 1)
        for number, variant in enumerate(variants):
            timings = _seconds(variant.modules, variant.inputs)
            if turn:  # the first call of a module takes longer
                for projection, seconds in zip(variant.projections, timings, strict=True):
                    times[projection.kind][number].append(seconds)
    progress("merge", ROUNDS + 1, ROUNDS + 1)
    for projection in factored:
        medians = [statistics.median(turns) for turns in times[projection.kind]]
        best = medians.index(min(medians))
        if best:
            yield projection, projection.forms[best]


class _Variant:
    """The modules of the projections that have form `number`, and their inputs."""

    def __init__(
        self, factored: Sequence[_Factored], number: int, inputs: Mapping[int, Tensor]
    ) -> None:
        self.projections = [p for p in factored if number < len(p.forms)]
        self.modules = [projection_modules({"": p.forms[number]})[""] for p in self.projections]
        self.inputs = [inputs[p.shape[1]] for p in self.projections]


@unchecked()
@torch.inference_mode()
def _seconds(modules: Sequence[nn.Module], inputs: Sequence[Tensor]) -> list[float]:
    """Return the seconds of each module, called in sequence."""
    timings = []
    for module, x in zip(modules, inputs, strict=True):
        began = seconds_now(x.device)
        module(x)
        timings.append(seconds_now(x.device) - began)
    return timings


def _merged_model(
    model: LoadedModel, network: PreTrainedModel, merged: Mapping[int, Mapping[str, Projection]]
) -> LoadedModel:
    names = [[index, sorted(changed)] for index, changed in merged.items()]
    derived = derive_model(model, f"{model.name} merged", network, [{"merged": names}])
    context = 256 if model.recipe is None else model.recipe.seq_len
    before = model.account or compare_size(model, model, context)
    return replace(derived, account=replace(before, model=count_account(network, context)))
