"""The MLP of a layer trained as a whole towards what the refit fits its down projection to.

The refit solves one matrix after another: gate and up towards what they give in the dense model,
then down. Where neurons are gone, other gates and ups serve the output better, which no linear
regression finds. So all three are trained together, from what the refit gives, by

    min over gate, up, down of E w |y - MLP(x^)|^2,

x^ the input of the MLP in the compressed model, y and w as in the refit of the down projection.
This is block reconstruction (BRECQ, Li et al. 2021) with the MLP as the block, and weights in the
place of roundings: one layer at a time, on its own inputs, without the network behind it.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from ..forms import Masked, Quantised, TwoOfFour
from ..layer import MLP, Linear, LowRank, Projection
from ..modules.compressed import CompressedMLP
from ..modules.projections import projection_modules, read_projection
from ..precise import exact_sum
from ..statistics import at_least_float32

# Adam: passes over the tokens, in so many steps; the highest learning rate, as a share of the root
# mean square of each matrix, and of the steps that rise to it. On stories260K at 30 %, two passes
# gain nine tenths of what fifteen do.
PASSES, STEPS, RATE, RISE = 2, 60, 0.03, 0.2
BETAS = (0.9, 0.95)
# Part of `training_key`: raise it where the training gives other weights than before.
REVISION = 1
MOST = 2**16  # tokens: of a layer of width 4,096 they take 2 GB
ROWS = 8192  # tokens at once where the loss is measured


@dataclass(frozen=True, eq=False)
class Seen:
    """Tokens: inputs x [n, d] of an MLP, what it should give, y [n, d], and weights [n] >= 0."""

    x: Tensor
    y: Tensor
    weights: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, weights: Tensor, total: int) -> "Seen":
        """Of a batch x, y [..., d], weights [...] of `total` tokens: evenly as many as MOST of all
        of them leaves.
        """
        every = math.ceil(total / MOST)
        return cls(x.flatten(0, -2)[::every], y.flatten(0, -2)[::every], weights.flatten()[::every])


def training_key() -> tuple[float | int, ...]:
    """What the training depends on besides the MLP and what it is given."""
    return REVISION, PASSES, STEPS, RATE, RISE, *BETAS, MOST


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
    """Whether a layer has an MLP of matrices and plain factors alone: numbers that are quantised or
    sparse stay as they are.
    """
    return mlp is not None and all(map(_is_plain, mlp.matrices().values()))


def _is_plain(projection: Projection) -> bool:
    if not isinstance(projection, LowRank):
        return isinstance(projection, Linear)
    factors, kept = (projection.down, projection.up), (Quantised, TwoOfFour, Masked)
    return projection.sparse is None and not any(isinstance(one, kept) for one in factors)


def trained_mlp(mlp: MLP, seen: Sequence[Seen]) -> MLP:
    """The MLP, trained on all batches; as it is where that does not lower the loss. In float32 at
    least; its dtype stays.
    """
    with torch.inference_mode(False), torch.enable_grad():
        # copies: autograd takes no tensors of inference mode
        x, y = (
            torch.cat([at_least_float32(one) for one in every])
            for every in ([one.x for one in seen], [one.y for one in seen])
        )
        weights = torch.cat([at_least_float32(one.weights) for one in seen])
        module = copy.deepcopy(_module(mlp)).to(x.dtype)
        before = _whole_loss(module, x, y, weights)
        _train(module, x, y, weights)
        if not _whole_loss(module, x, y, weights) < before:  # NaN is no gain
            return mlp
    return _value(module.to(mlp.down.weight.dtype), mlp)


def _train(module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> None:
    own = [p.requires_grad_() for p in module.parameters() if p.is_floating_point()]
    rates = _rates(own)
    groups = [{"params": [p], "lr": rate} for p, rate in zip(own, rates, strict=True)]
    optimizer = torch.optim.Adam(groups, betas=BETAS)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rates, total_steps=STEPS, pct_start=RISE, cycle_momentum=False
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
    """A learning rate for every tensor: of a bias that of the largest matrix."""
    sizes = [RATE * float(p.detach().square().mean().sqrt()) for p in tensors]
    largest = max(size for p, size in zip(tensors, sizes, strict=True) if p.ndim > 1)
    return [size if p.ndim > 1 else largest for p, size in zip(tensors, sizes, strict=True)]


def _loss(module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Of every token [n], its mean over the outputs."""
    error: Tensor = module(x) - y
    return error.square().mean(-1) * weights


@torch.no_grad()
def _whole_loss(module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> float:
    parts = zip(x.split(ROWS), y.split(ROWS), weights.split(ROWS), strict=True)
    return sum(float(exact_sum(_loss(module, *part))) for part in parts)


def _module(mlp: MLP) -> nn.Module:
    return _PlainMLP(mlp) if mlp.gate is None else CompressedMLP.of(mlp)


def _value(module: nn.Module, before: MLP) -> MLP:
    """The MLP of the trained module, frozen."""
    for p in module.parameters():
        p.requires_grad_(False)
    own = {name: read_projection(getattr(module, f"{name}_proj")) for name in before.matrices()}
    return MLP(**own, activation=before.activation)
