"""Small decoder layers with ill-conditioned inputs, generated in one place for all tests.

The hidden states are ill-conditioned as well: rows of the projections are scaled, doubled or zero
like the channels of the input, so that heads and neurons are massive, near-duplicate, constant or
dead.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from toy_layer import Sizes, Toy, moments_of, toy, watched

from lrcore.layers.layer import Layer, Linear

SMALL = Sizes(d=8, d_f=10, head=4)
TOKENS = 24
# n_q, n_kv, position, bias, gated: separate heads and a plain MLP; grouped heads without and with
# rotary positions
MHA = (2, 2, "none", True, False)
GQA = (4, 2, "none", False, True)
ROTARY = (4, 2, "rotary", True, True)
LAYERS = {"mha": MHA, "gqa": GQA, "rotary": ROTARY}

Rows = dict[int, Callable[[Tensor], Tensor]]  # changes of rows of a matrix [n, m]


def _scaled(m: Tensor) -> Tensor:
    return 1e4 * m[1]


def _copy(m: Tensor) -> Tensor:
    return m[0]


def _near(m: Tensor) -> Tensor:
    return m[0] + 1e-7 * m[1]


def _zero(m: Tensor) -> Tensor:
    return 0 * m[2]


def _graded(x: Tensor) -> Tensor:
    """Return the tokens with second moments of condition 1e12."""
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    return u * len(x) ** 0.5 @ (torch.logspace(0, -6, x.shape[1], dtype=x.dtype).unsqueeze(1) * v)


def _far(x: Tensor) -> Tensor:
    """Return the channels with a mean of 50 standard deviations."""
    return (x - x.mean(0)) / x.std(0) + 50.0


# Changes of the inputs [tokens, d], changes of rows of the projections that produce states of heads
# and neurons, and the dtype of activations.
KINDS: dict[str, tuple[Callable[[Tensor], Tensor], Rows, torch.dtype]] = {
    "well_conditioned": (lambda x: x, {}, torch.float64),
    "rank_deficient": (lambda x: x[:5], {1: _copy}, torch.float64),
    "condition_1e12": (_graded, {}, torch.float64),
    "massive": (
        lambda x: x * torch.tensor([1.0, 1e4, *[1.0] * (x.shape[1] - 2)], dtype=x.dtype),
        {},
        torch.float64,
    ),
    "massive_states": (lambda x: x, {1: _scaled}, torch.float64),
    "near_duplicates": (
        lambda x: x.index_copy(1, torch.tensor([1]), (x[:, 0] + 1e-7 * x[:, 1]).unsqueeze(1)),
        {1: _near},
        torch.float64,
    ),
    "constant": (lambda x: x.index_fill(1, torch.tensor([2]), 1.5), {2: _zero}, torch.float64),
    "zero": (lambda x: x.index_fill(1, torch.tensor([2]), 0.0), {2: _zero}, torch.float64),
    "float16": (_far, {}, torch.float16),
    "bfloat16": (_far, {}, torch.bfloat16),
}
FROM_STATES = ("q", "k", "v", "up", "gate")


def with_rows(layer: Layer, rows: Rows) -> Layer:
    """Return the layer with some rows of the first head and of the neurons replaced; rows of zeros
    retain their bias, so that their states are constant.
    """
    changed = {}
    for name, old in layer.matrices().items():
        if name in FROM_STATES and rows:
            changes = {i: f for i, f in rows.items() if not (name == "gate" and f is _scaled)}
            weight, bias = old.weight.clone(), None if old.bias is None else old.bias.clone()
            for row, change in changes.items():
                weight[row] = change(old.weight)
                if bias is not None and change is not _zero:
                    bias[row] = change(old.bias)
            changed[name] = Linear(weight, bias)
    return layer.with_matrices(**changed)


@cache
def hard_layer(layer: str, kind: str) -> Toy:
    """Return a layer of `LAYERS` with inputs of `KINDS`. Activations are rounded to their dtype and
    stored in float64, so that their moments are exact up to float64 rounding.
    """
    inputs, rows, dtype = KINDS[kind]
    case = toy(*LAYERS[layer], tokens=TOKENS, sizes=SMALL)
    case = watched(with_rows(case.layer, rows), inputs(case.x.clone()).to(dtype).double())
    if dtype == torch.float64:
        return case
    a, z = (seen.to(dtype).double() for seen in (case.a, case.z))
    values = case.mixtures @ (case.x @ case.layer.attention.v.weight.mT)
    weighted = values.transpose(0, 1).flatten(1)
    moments = moments_of(case.layer, case.x, a, z, weighted)
    return Toy(case.layer, moments, case.x, a, z, case.mixtures)
