"""Training of a decoder layer towards the dense residual stream.

The refit solves one projection after another, each for a target of its own. Trained together they
reach a lower error, because attention, MLP and norms can compensate for each other. So after its
refit, all numbers of the layer are trained by

    min E w |f(x^) - y|^2,

with f the compressed layer, x^ the stream at its input in the compressed model, y the dense stream
after the layer, and w the weight of a token as in the refit. This is block reconstruction (BRECQ,
Li et al. 2021) with low-rank factors instead of roundings: one layer at a time, without the rest of
the network.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...layers.forms import Masked, Sparse, TwoOfFour
from ...layers.linalg import sum_float64
from ...layers.modules.projections import StoredLinear
from ...layers.statistics import at_least_float32
from ...models.architectures import decoder_layers
from ...models.partial import Call

# Adam: passes over the tokens and least number of steps, tokens per step, highest learning rate as
# a share of the root mean square of each matrix, and the share of steps with a rising rate.
PASSES, MIN_STEPS, STEP_TOKENS, RATE, WARM_UP_SHARE = 4, 60, 512, 0.03, 0.2
BETAS = (0.9, 0.95)
REVISION = 2  # part of `training_key`: increase it if the training yields other weights
MAX_TOKENS = 2**16  # per pass, evenly spaced batches
FIXED = (Sparse, TwoOfFour, Masked)  # forms whose numbers are not trained, like quantized ones


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """Windows of a layer: its inputs x [b, t, d] and further arguments `call`, the target outputs
    y [b, t, d], and the weights of the tokens [b, t] >= 0.
    """

    x: Tensor
    call: Call
    y: Tensor
    weights: Tensor


def training_key() -> tuple[float | int, ...]:
    """Return the constants that the training depends on."""
    return REVISION, PASSES, MIN_STEPS, STEP_TOKENS, RATE, WARM_UP_SHARE, *BETAS, MAX_TOKENS


def windows_per_step(seq_len: int) -> int:
    """Return the number of windows of `seq_len` tokens in a batch of the training."""
    return max(1, STEP_TOKENS // seq_len)


def train_layer(network: PreTrainedModel, index: int, batches: Sequence[TrainingBatch]) -> None:
    """Train layer `index` of the network, or leave it unchanged if the loss does not fall.

    Trained in float32 at least; the dtype is unchanged. Numbers that other layers share, and
    quantized and sparse numbers, are not trained.
    """
    layer = decoder_layers(network)[index]
    total = sum(batch.weights.numel() for batch in batches)
    batches = batches[:: math.ceil(total / MAX_TOKENS)]
    with torch.inference_mode(False), torch.enable_grad(), _trainable(network, layer) as parameters:
        if not any(p.ndim > 1 for p in parameters):
            return
        loss = _Loss(layer)
        before = loss.total(batches)
        start = [p.detach().clone() for p in parameters]
        _train(parameters, loss, batches)
        if not loss.total(batches) < before:  # also if the loss is NaN
            with torch.no_grad():
                for p, former in zip(parameters, start, strict=True):
                    p.copy_(former)


@contextmanager
def _trainable(network: PreTrainedModel, layer: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Give a layer copies of its tensors, and yield the parameters to train.

    The copies are in float32 at least: autograd cannot use tensors made in inference mode.

    Afterwards, the layer has the trained numbers in its dtype, and its former tensors otherwise.
    """
    others = (other for other in decoder_layers(network) if other is not layer)
    fixed = {id(p) for other in others for p in other.parameters()}
    for module in layer.modules():
        if isinstance(module, StoredLinear) and isinstance(module.form, FIXED):
            fixed |= {id(p) for p in module.parameters()}
    copies: dict[int, Tensor] = {}  # one per tensor, which several modules may share
    trained: dict[int, nn.Parameter] = {}
    places = list(_tensors(layer))
    for table, name, tensor in places:
        key = id(tensor)
        if key not in copies:
            copies[key] = _copied(tensor)
            is_parameter = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
            if is_parameter and key not in fixed:
                copies[key] = trained[key] = nn.Parameter(copies[key])
        table[name] = copies[key]
    try:
        yield list(trained.values())
    finally:
        after = {
            id(tensor): nn.Parameter(trained[id(tensor)].detach().to(tensor.dtype), False)
            for _, _, tensor in places
            if id(tensor) in trained
        }
        for table, name, tensor in places:
            table[name] = after.get(id(tensor), tensor)


def _tensors(layer: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Yield the parameters and buffers of a layer with the tables that hold them."""
    for module in layer.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is not None:
                    yield table, name, tensor


class _Loss:
    """The weighted squared error of a layer's output."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self._calls: dict[int, Call] = {}  # batches of one size share their arguments

    def __call__(self, batch: TrainingBatch) -> Tensor:
        """Return the loss of each token of a batch [b, t], a mean over the width."""
        if id(batch.call) not in self._calls:
            self._calls[id(batch.call)] = _copied(batch.call)
        args, kwargs = self._calls[id(batch.call)]
        out = self.layer(_copied(batch.x), *args, **kwargs)
        out = out[0] if isinstance(out, tuple) else out
        error: Tensor = (out - _copied(batch.y)).square().mean(-1) * _copied(batch.weights)
        return error

    @torch.no_grad()
    def total(self, batches: Sequence[TrainingBatch]) -> float:
        """Return the sum over all tokens."""
        return sum(float(sum_float64(self(batch))) for batch in batches)


def _copied(value: Any) -> Any:
    """Return copies of all tensors in a value, floating-point numbers in float32 at least."""
    if isinstance(value, Tensor):
        dtype = at_least_float32(value).dtype if value.is_floating_point() else value.dtype
        return value.detach().to(dtype, copy=True)
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_copied(part) for part in value)
    return value


def _train(
    parameters: Sequence[nn.Parameter], loss: _Loss, batches: Sequence[TrainingBatch]
) -> None:
    rates, passes = _rates(parameters), max(PASSES, math.ceil(MIN_STEPS / len(batches)))
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=True)]
    optimizer = torch.optim.Adam(groups, betas=BETAS)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        rates,
        total_steps=passes * len(batches),
        pct_start=WARM_UP_SHARE,
        cycle_momentum=False,
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(passes):
        for number in torch.randperm(len(batches), generator=generator).tolist():
            optimizer.zero_grad()
            loss(batches[number]).mean().backward()
            optimizer.step()
            schedule.step()


def _rates(tensors: Sequence[Tensor]) -> list[float]:
    """Return a learning rate for each tensor; a vector has the rate of the largest matrix."""
    sizes = [RATE * float(p.detach().square().mean().sqrt()) for p in tensors]
    largest = max(size for p, size in zip(tensors, sizes, strict=True) if p.ndim > 1)
    return [size if p.ndim > 1 else largest for p, size in zip(tensors, sizes, strict=True)]
