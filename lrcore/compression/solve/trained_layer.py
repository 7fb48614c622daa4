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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...layers.forms import Masked, Sparse, SparseCodes, TwoOfFour
from ...layers.linalg import sum_float64
from ...layers.modules.projections import StoredLinear
from ...models.architectures import decoder_layers
from ...models.partial import Call

# Adam: passes over the tokens and least number of steps, tokens per step, and the share of steps
# with a rising rate.
PASSES, MIN_STEPS, STEP_TOKENS, WARM_UP_SHARE = 8, 60, 512, 0.2
BETAS = (0.9, 0.95)
# Highest learning rates to choose from, as shares of the root mean square of each tensor. The loss
# of SmolLM2-135M, 576 wide, rises at the first two.
RATES = (0.03, 0.01, 0.003)
REVISION = 2  # part of `training_key`: increase it if the training yields other weights
MAX_TOKENS = 2**16  # per pass, evenly spaced batches
# Forms whose numbers are not trained, like quantized ones
FIXED = (Sparse, SparseCodes, TwoOfFour, Masked)


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
    return REVISION, PASSES, MIN_STEPS, STEP_TOKENS, WARM_UP_SHARE, *BETAS, *RATES, MAX_TOKENS


def windows_per_step(seq_len: int) -> int:
    """Return the number of windows of `seq_len` tokens in a batch of the training."""
    return max(1, STEP_TOKENS // seq_len)


class LayerTraining:
    """Training of the layers of a compressed network, in order.

    The first layer is trained at each of RATES, the others at its best rate, and at lower ones only
    if the loss does not fall. In float32 at least; the dtype is unchanged. Numbers that several
    layers share, and quantized and sparse numbers, are not trained.
    """

    def __init__(self) -> None:
        self._best_rate: float | None = None

    @property
    def best_rate(self) -> float:
        """The rate of RATES at which the first layer improved most; the lowest if none did."""
        return self._best_rate or RATES[-1]

    def train(self, network: PreTrainedModel, index: int, batches: Sequence[TrainingBatch]) -> None:
        """Train a layer, or leave it unchanged if its loss over all batches does not fall."""
        layer = decoder_layers(network)[index]
        total = sum(batch.weights.numel() for batch in batches)
        batches = batches[:: math.ceil(total / MAX_TOKENS)]
        others = (other for other in decoder_layers(network) if other is not layer)
        shared = {id(p) for other in others for p in other.parameters()}
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            trainable([layer], torch.float32, shared) as parameters,
        ):
            if parameters:
                self._train_at_best_rate(parameters, _Loss(layer), batches)

    def _train_at_best_rate(
        self, parameters: Sequence[nn.Parameter], loss: "_Loss", batches: Sequence[TrainingBatch]
    ) -> None:
        start = [p.detach().clone() for p in parameters]
        lowest, best, best_rate = loss.total(batches), start, None
        for rate in RATES if self._best_rate is None else RATES[RATES.index(self._best_rate) :]:
            assign(parameters, start)
            _train(parameters, loss, batches, rate)
            after = loss.total(batches)
            if after < lowest:  # not if it is NaN
                lowest, best, best_rate = after, [p.detach().clone() for p in parameters], rate
                if self._best_rate is not None:
                    break
        assign(parameters, best)
        self._best_rate = self._best_rate or best_rate


@contextmanager
def trainable(
    layers: Iterable[nn.Module], least: torch.dtype, fixed: Collection[int] = ()
) -> Iterator[list[nn.Parameter]]:
    """Give layers copies of their tensors, and yield the parameters to train.

    Autograd cannot use tensors made in inference mode. least: floating-point copies have this dtype
    at least. fixed: ids of parameters that are not trained; nor are quantized and sparse numbers.
    Afterwards, the layers have the trained numbers in their dtypes, and their former tensors
    otherwise.
    """
    modules = [module for layer in layers for module in layer.modules()]
    kept = set(fixed)
    for module in modules:
        if isinstance(module, StoredLinear) and isinstance(module.form, FIXED):
            kept |= {id(p) for p in module.parameters()}
    copies: dict[int, Tensor] = {}  # one per tensor, which several modules may share
    trained: dict[int, nn.Parameter] = {}
    entries = list(_tensors(modules))
    for table, name, tensor in entries:
        key = id(tensor)
        if key not in copies:
            copies[key] = _copied(tensor, least)
            is_parameter = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
            if is_parameter and key not in kept:
                copies[key] = trained[key] = nn.Parameter(copies[key])
        table[name] = copies[key]
    try:
        yield list(trained.values())
    finally:
        after = {
            id(tensor): nn.Parameter(trained[id(tensor)].detach().to(tensor.dtype), False)
            for _, _, tensor in entries
            if id(tensor) in trained
        }
        for table, name, tensor in entries:
            table[name] = after.get(id(tensor), tensor)


def _tensors(modules: Iterable[nn.Module]) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Yield the parameters and buffers of modules with the tables that hold them."""
    for module in modules:
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


def _copied(value: Any, least: torch.dtype = torch.float32) -> Any:
    """Return copies of all tensors in a value, floating-point numbers in dtype `least` at least."""
    if isinstance(value, Tensor):
        dtype = value.dtype
        if value.is_floating_point() and dtype.itemsize < least.itemsize:
            dtype = least
        return value.detach().to(dtype, copy=True)
    if isinstance(value, Mapping):
        return {name: _copied(part, least) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_copied(part, least) for part in value)
    return value


@torch.no_grad()
def assign(parameters: Sequence[nn.Parameter], numbers: Sequence[Tensor]) -> None:
    """Set parameters [...] to numbers [...] of the same shapes, in place."""
    for parameter, tensor in zip(parameters, numbers, strict=True):
        parameter.copy_(tensor)


def _train(
    parameters: Sequence[nn.Parameter],
    loss: _Loss,
    batches: Sequence[TrainingBatch],
    rate: float,
) -> None:
    """Train the parameters; rate: see RATES. A tensor of zeros stays."""
    rates = [rate * float(p.detach().square().mean().sqrt()) for p in parameters]
    passes = max(PASSES, math.ceil(MIN_STEPS / len(batches)))
    groups = [{"params": [p], "lr": lr} for p, lr in zip(parameters, rates, strict=True)]
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
