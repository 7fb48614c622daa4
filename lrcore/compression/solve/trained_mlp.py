"""Training of a layer's MLP towards the targets of its refit.

The refit solves one matrix after another: gate and up for their outputs in the dense model, then
down. If neurons are removed, other gate and up matrices serve the output better, which a linear
regression cannot find. So all three are trained together, starting from the refit, by

    min over gate, up, down of E w |y - MLP(x^)|^2,

with x^ the input of the MLP in the compressed model, y and w as in the refit of the down
projection. This is block reconstruction (BRECQ, Li et al. 2021) with the MLP as the block and
weights instead of roundings: one layer at a time, without the rest of the network.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from ...layers.forms import Masked, Quantized, TwoOfFour
from ...layers.layer import LEARNED_ACTIVATIONS, MLP, Linear, LowRank, Projection
from ...layers.linalg import sum_float64
from ...layers.modules.compressed import CompressedMLP
from ...layers.modules.projections import projection_modules, read_projection
from ...layers.statistics import at_least_float32

# Adam: passes over the tokens, number of steps, highest learning rate as a share of the root mean
# square of each matrix, and the share of steps with a rising rate. On stories260K at 30 %, two
# passes gain nine tenths of the gain of fifteen.
PASSES, STEPS, RATE, WARM_UP_SHARE = 2, 60, 0.03, 0.2
BETAS = (0.9, 0.95)
REVISION = 1  # part of `training_key`: increase it if the training yields other weights
MAX_TOKENS = 2**16  # for a layer of width 4,096 they take 2 GB
LOSS_BATCH = 8192  # tokens per batch of the loss


@dataclass(frozen=True, eq=False)
class TokenSample:
    """Tokens: inputs x [n, d] of an MLP, target outputs y [n, d], and weights [n] >= 0."""

    x: Tensor
    y: Tensor
    weights: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, weights: Tensor, total: int) -> "TokenSample":
        """Return evenly spaced tokens of a batch x, y [..., d], weights [...].

        total: number of tokens of all batches, of which at most MAX_TOKENS are selected.
        """
        step = math.ceil(total / MAX_TOKENS)
        return cls(x.flatten(0, -2)[::step], y.flatten(0, -2)[::step], weights.flatten()[::step])


def training_key() -> tuple[float | int, ...]:
    """Return the constants that the training depends on."""
    return REVISION, PASSES, STEPS, RATE, WARM_UP_SHARE, *BETAS, MAX_TOKENS


class _PlainMLP(nn.Module):
    """An MLP without a gate: down(act(up x))."""

    def __init__(self, mlp: MLP) -> None:
        super().__init__()
        parts = projection_modules({"up": mlp.up, "down": mlp.down})
        self.up_proj, self.down_proj = parts["up"], parts["down"]
        self.act = ACT2FN[mlp.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, d]."""
        out: Tensor = self.down_proj(self.act(self.up_proj(x)))
        return out


def can_train(mlp: MLP | None) -> bool:
    """Return whether a layer has an MLP that consists of matrices and plain factors.

    Quantized and sparse numbers are not trained, nor are MLPs with learned parameters in
    the activation.
    """
    if mlp is None or mlp.activation in LEARNED_ACTIVATIONS:
        return False
    return all(map(_is_plain, mlp.matrices().values()))


def _is_plain(projection: Projection) -> bool:
    if not isinstance(projection, LowRank):
        return isinstance(projection, Linear)
    factors, fixed_forms = (projection.down, projection.up), (Quantized, TwoOfFour, Masked)
    return projection.sparse is None and not any(isinstance(f, fixed_forms) for f in factors)


def trained_mlp(mlp: MLP, samples: Sequence[TokenSample]) -> MLP:
    """Return the MLP trained on all batches, or the MLP itself if the loss does not fall.

    Trained in float32 at least; the dtype is unchanged.
    """
    with torch.inference_mode(False), torch.enable_grad():
        # copies: autograd cannot use tensors of inference mode
        x, y, weights = (
            torch.cat([at_least_float32(getattr(sample, name)) for sample in samples])
            for name in ("x", "y", "weights")
        )
        module = copy.deepcopy(_module(mlp)).to(x.dtype)
        before = _total_loss(module, x, y, weights)
        _train(module, x, y, weights)
        if not _total_loss(module, x, y, weights) < before:  # also if the loss is NaN
            return mlp
    return _value(module.to(mlp.down.weight.dtype), mlp)


def _train(module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> None:
    parameters = [p.requires_grad_() for p in module.parameters() if p.is_floating_point()]
    rates = _rates(parameters)
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=True)]
    optimizer = torch.optim.Adam(groups, betas=BETAS)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rates, total_steps=STEPS, pct_start=WARM_UP_SHARE, cycle_momentum=False
    )
    generator = torch.Generator().manual_seed(0)
    passes = [torch.randperm(len(x), generator=generator) for _ in range(PASSES)]
    order = torch.cat(passes).to(x.device)
    for part in order.split(math.ceil(len(order) / STEPS)):
        optimizer.zero_grad()
        _loss(module, x[part], y[part], weights[part]).mean().backward()
        optimizer.step()
        schedule.step()


def _rates(tensors: Sequence[Tensor]) -> list[float]:
    """Return a learning rate for each tensor; that of a bias is the rate of the largest matrix."""
    sizes = [RATE * float(p.detach().square().mean().sqrt()) for p in tensors]
    largest = max(size for p, size in zip(tensors, sizes, strict=True) if p.ndim > 1)
    return [size if p.ndim > 1 else largest for p, size in zip(tensors, sizes, strict=True)]


def _loss(module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the loss of each token [n], the mean over the outputs."""
    error: Tensor = module(x) - y
    return error.square().mean(-1) * weights


@torch.no_grad()
def _total_loss(module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> float:
    parts = zip(*(tensor.split(LOSS_BATCH) for tensor in (x, y, weights)), strict=True)
    return sum(float(sum_float64(_loss(module, *part))) for part in parts)


def _module(mlp: MLP) -> nn.Module:
    return _PlainMLP(mlp) if mlp.gate is None else CompressedMLP.of(mlp)


def _value(module: nn.Module, before: MLP) -> MLP:
    """Return the frozen MLP of the trained module."""
    for p in module.parameters():
        p.requires_grad_(False)
    matrices = {
        name: read_projection(getattr(module, f"{name}_proj")) for name in before.matrices()
    }
    return MLP(**matrices, activation=before.activation)
