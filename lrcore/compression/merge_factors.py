"""Factored projections multiplied out where their dense matrix takes less time; in no paper.

A pair of factors has fewer multiply-adds than its matrix, but two products, and an identity block
picks and puts back columns: with few tokens at once the calls count more than the multiply-adds.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..cancellation import unchecked
from ..errors import InputError
from ..forms import Blocks, dense
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
    """The model with the factors of a projection multiplied out, W = U V, where the matrix is
    faster on the device that the model is on; the model itself where none is. For running it: what
    is merged takes the memory of the dense matrix again, which `size` and `account` count.

    tokens: that a projection is given at once; 1 is decoding one sequence. While it is measured,
    the dense matrices of all factors are held. Cached latents stay, and so do quantised and sparse
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
    pairs = [
        _Pair(index, name, value, Linear(_product(value), value.bias))
        for index, layer in enumerate(layers)
        for name, value in _factored(layer)
    ]
    merged: dict[int, dict[str, Projection]] = {}
    for pair in _faster_dense(pairs, _inputs(network, pairs, tokens), progress):
        merged.setdefault(pair.layer, {})[pair.name] = pair.matrix
    if not merged:
        return model
    for index, changed in merged.items():
        write_layer(network, layers[index].with_matrices(**changed))
    return _merged_model(model, network, merged)


@dataclass(frozen=True, eq=False)
class _Pair:
    """A projection of a decoder layer in factors, and as a matrix."""

    layer: int
    name: str
    factors: Projection
    matrix: Linear


def _factored(layer: Layer) -> Iterator[tuple[str, LowRank | Stored]]:
    """The projections of a layer that may be merged, by name."""
    latents = [layer.attention.cached_latent(name) for name in "kv"]
    for name, value in layer.matrices().items():
        if not isinstance(value, Linear) and value not in latents and _plain(value):
            yield name, value


def _check_memory(network: PreTrainedModel, layers: Sequence[Layer]) -> None:
    """Raise Shortage where the matrices are more than is free."""
    shapes = [_shape(value) for layer in layers for _, value in _factored(layer)]
    need = sum(math.prod(shape) for shape in shapes) * network.dtype.itemsize
    if device_of(network).type == "cpu":
        remedy = "Run the model with its factors."
        raise_unless_free(need, "The matrices of the factors", remedy, free_memory())


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


def _inputs(network: PreTrainedModel, pairs: Sequence[_Pair], tokens: int) -> dict[int, Tensor]:
    """Something to multiply by, [1, tokens, in], for every width."""
    device = device_of(network)
    return {
        width: torch.ones(1, tokens, width, dtype=network.dtype, device=device)
        for width in {pair.matrix.weight.shape[1] for pair in pairs}
    }


def _faster_dense(
    pairs: Sequence[_Pair], inputs: Mapping[int, Tensor], progress: Progress
) -> Iterator[_Pair]:
    """The pairs whose matrix takes less time.

    All factors are run one after the other, then all matrices, as a forward pass does, so that none
    waits in the processor's cache for its next turn.
    """
    own = [inputs[pair.matrix.weight.shape[1]] for pair in pairs]
    factors = [projection_modules({"": pair.factors})[""] for pair in pairs]
    matrices = [projection_modules({"": pair.matrix})[""] for pair in pairs]
    times: list[tuple[list[float], list[float]]] = []
    for turn in range(ROUNDS + 1):
        progress("merge", turn, ROUNDS + 1)
        found = _seconds(factors, own), _seconds(matrices, own)
        times += [found] if turn else []  # the first call of a module takes longer
    progress("merge", ROUNDS + 1, ROUNDS + 1)
    for number, pair in enumerate(pairs):
        ours, theirs = (statistics.median(one[side][number] for one in times) for side in (0, 1))
        if theirs < ours:
            yield pair


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
