"""Factored projections in the form that takes least time: as they are, with their identity blocks
filled in, or multiplied out; in no paper.

A pair of factors has fewer multiply-adds than its matrix, but two products: with few tokens at once
the calls count more than the multiply-adds. An identity block saves a part of them, but picks and
puts back columns, which takes longer than what it saves.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..cancellation import unchecked
from ..errors import InputError
from ..forms import Blocks, Matrix, count, dense, tensors_of
from ..hardware import seconds_now
from ..layer import Layer, Linear, LowRank, Projection, Stored
from ..memory import free_memory, raise_unless_free
from ..models.architectures import decoder_layers
from ..models.counting import count_account
from ..models.layers import clone, device_of, read_exact, write_layer
from ..models.load import LoadedModel
from ..modules.projections import projection_modules
from ..progress import Progress, silent
from ..settings import check_least
from .derived import compared, derived

ROUNDS = 9  # factors and matrices take turns so often; the median counts


def merge_factors(
    model: LoadedModel, tokens: int = 1, progress: Progress | None = None
) -> LoadedModel:
    """The model with the factors of a projection multiplied out, W = U V, or with their identity
    blocks filled in, where that is faster on the device that the model is on; the model itself
    where nothing is. For running it: what is merged takes more memory again, at most that of the
    dense matrix, which `size` and `account` count.

    tokens: that a projection is given at once; 1 is decoding one sequence. While it is measured,
    the other forms of all factors are held. Cached latents stay, and so do quantised and sparse
    parts, experts, and narrower heads and MLPs, which no matrix undoes. The model given is
    untouched. Outputs differ by rounding.

    Raises InputError for tokens below 1 and for offloaded layers, and Shortage where memory does
    not suffice for the matrices.
    """
    check_least("tokens", tokens, 1)
    if model.offloaded:
        raise InputError(
            "Factors are not merged in offloaded layers, for reading them takes the time. Load the "
            "model without offload."
        )
    progress, network = progress or silent, clone(model.network)
    layers = [read_exact(network, index) for index in range(len(decoder_layers(network)))]
    _check_memory(network, layers)
    fill_in = _FillIn()
    ours = [
        _Factored(index, name, value, fill_in.others(value))
        for index, layer in enumerate(layers)
        for name, value in _factored(layer)
    ]
    merged: dict[int, dict[str, Projection]] = {}
    for one, form in _fastest(ours, _inputs(network, ours, tokens), progress):
        merged.setdefault(one.layer, {})[one.name] = form
    if not merged:
        return model
    for index, changed in merged.items():
        write_layer(network, layers[index].with_matrices(**changed))
    return _merged_model(model, network, merged)


@dataclass(frozen=True, eq=False)
class _Factored:
    """A projection of a decoder layer as it is, and in other forms that compute the same: its
    matrix, and its factors with their identity blocks filled in where that can be faster.
    """

    layer: int
    name: str
    value: LowRank | Stored
    others: tuple[Projection, ...]

    @property
    def forms(self) -> tuple[Projection, ...]:
        """As it is, then the others."""
        return self.value, *self.others

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""
        return _shape(self.value)

    @property
    def kind(self) -> tuple[Any, ...]:
        """The same for projections that take as long as each other."""
        if isinstance(self.value, Stored):
            return self.shape, type(self.value.form), count(self.value.form)
        parts = (self.value.down, self.value.up)
        return self.shape, self.value.rank, *((type(part), count(part)) for part in parts)


def _factored(layer: Layer) -> Iterator[tuple[str, LowRank | Stored]]:
    """The projections of a layer that may be merged, by name."""
    latents = [layer.attention.cached_latent(name) for name in "kv"]
    for name, value in layer.matrices().items():
        if not isinstance(value, Linear) and value not in latents and _plain(value):
            yield name, value


def _check_memory(network: PreTrainedModel, layers: Sequence[Layer]) -> None:
    """Raise Shortage where the other forms are more than is free."""
    values = [value for layer in layers for _, value in _factored(layer)]
    numbers = sum(math.prod(_shape(value)) + _to_fill_in(value) for value in values)
    if device_of(network).type == "cpu":
        remedy = "Run the model with its factors."
        need = numbers * network.dtype.itemsize
        raise_unless_free(need, "The matrices of the factors", remedy, free_memory())


def _to_fill_in(value: LowRank | Stored) -> int:
    """How many numbers factors have whose identity blocks are filled in; 0 where there are none, or
    no fewer than in the matrix.
    """
    if isinstance(value, Stored) or not any(
        isinstance(part, Blocks) for part in (value.down, value.up)
    ):
        return 0
    numbers = value.rank * sum(_shape(value))
    return numbers if numbers < math.prod(_shape(value)) else 0


def _shape(value: LowRank | Stored) -> tuple[int, int]:
    """[out, in] of a projection."""
    if isinstance(value, Stored):
        return value.form.shape
    return value.up.shape[0], value.down.shape[1]


def _plain(value: LowRank | Stored) -> bool:
    """Whether no part is quantised or sparse: those were made for their bytes."""
    if isinstance(value, Stored):
        return isinstance(value.form, Blocks)
    parts = (value.down, value.up)
    return value.sparse is None and all(isinstance(part, Tensor | Blocks) for part in parts)


def _product(value: LowRank | Stored) -> Tensor:
    """The matrix [out, in] in the dtype of its factors, the product in float32 at least."""
    if isinstance(value, Stored):
        return dense(value.form)
    down, up = dense(value.down), dense(value.up)
    wider = torch.promote_types(down.dtype, torch.float32)
    return (up.to(wider) @ down.to(wider)).to(down.dtype)


class _FillIn:
    """Factors with their identity blocks filled in. What projections share stays one tensor."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Tensor] = {}

    def others(self, value: LowRank | Stored) -> tuple[Projection, ...]:
        """The other forms of a projection, as `_Factored` has them."""
        matrix = Linear(_product(value), value.bias)
        if isinstance(value, Stored) or not _to_fill_in(value):
            return (matrix,)
        return matrix, LowRank(self._filled(value.down), self._filled(value.up), value.bias)

    def _filled(self, part: Matrix) -> Tensor:
        if isinstance(part, Tensor):
            return part
        key = tuple(tensor.data_ptr() for tensor in tensors_of(part).values())
        if key not in self._known:
            self._known[key] = dense(part).contiguous()
        return self._known[key]


def _inputs(network: PreTrainedModel, ours: Sequence[_Factored], tokens: int) -> dict[int, Tensor]:
    """Something to multiply by, [1, tokens, in], for every width."""
    device = device_of(network)
    return {
        width: torch.ones(1, tokens, width, dtype=network.dtype, device=device)
        for width in {one.shape[1] for one in ours}
    }


def _fastest(
    ours: Sequence[_Factored], inputs: Mapping[int, Tensor], progress: Progress
) -> Iterator[tuple[_Factored, Projection]]:
    """The projections of which another form than their factors takes least time, and that form.

    One form of all projections is run after the other, as a forward pass does, so that none waits
    in the processor's cache for its next turn. Projections alike, of most layers where ranks are
    uniform, are decided together, for a single one takes little longer than a clock is exact.
    """
    times = {one.kind: [list[float]() for _ in one.forms] for one in ours}
    sides = [_Side(ours, side, inputs) for side in range(max(map(len, times.values()), default=0))]
    for turn in range(ROUNDS + 1):
        progress("merge", turn, ROUNDS + 1)
        for number, side in enumerate(sides):
            found = _seconds(side.modules, side.inputs)
            if turn:  # the first call of a module takes longer
                for one, seconds in zip(side.ours, found, strict=True):
                    times[one.kind][number].append(seconds)
    progress("merge", ROUNDS + 1, ROUNDS + 1)
    for one in ours:
        medians = [statistics.median(turns) for turns in times[one.kind]]
        best = medians.index(min(medians))
        if best:
            yield one, one.forms[best]


class _Side:
    """The modules of one form of all projections that have it, and what each is given."""

    def __init__(self, ours: Sequence[_Factored], side: int, inputs: Mapping[int, Tensor]) -> None:
        self.ours = [one for one in ours if side < len(one.forms)]
        self.modules = [projection_modules({"": one.forms[side]})[""] for one in self.ours]
        self.inputs = [inputs[one.shape[1]] for one in self.ours]


@unchecked()
@torch.inference_mode()
def _seconds(modules: Sequence[nn.Module], inputs: Sequence[Tensor]) -> list[float]:
    """Of each module, in turn."""
    found = []
    for module, x in zip(modules, inputs, strict=True):
        began = seconds_now(x.device)
        module(x)
        found.append(seconds_now(x.device) - began)
    return found


def _merged_model(
    model: LoadedModel, network: PreTrainedModel, merged: Mapping[int, Mapping[str, Projection]]
) -> LoadedModel:
    names = [[index, sorted(changed)] for index, changed in merged.items()]
    made = derived(model, f"{model.name} merged", network, [{"merged": names}])
    context = 256 if model.recipe is None else model.recipe.seq_len
    before = model.account or compared(model, model, context)
    return replace(made, account=replace(before, model=count_account(network, context)))
