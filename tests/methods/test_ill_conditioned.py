"""Singular moments: finite results, with the error of a pseudo-inverse to 1e-6 of the total.

All methods give finite results. Methods with a closed form are compared with singular values and
least squares computed from the tokens.
"""

from dataclasses import replace

import pytest
import torch
from method_options import UNDAMPED, VARIANTS
from toy_layer import HEAD, D, Toy, apply, toy, watched

from lrcore.layers.layer import Linear, heads, output_heads
from lrcore.layers.statistics import TAPS, Moments
from lrcore.methods import METHODS, truncate

TOKENS = 80
KINDS = [(3, 3, "none", True, False), (4, 2, "none", False, True), (4, 2, "rotary", True, True)]


def changed(case: Toy, **rows) -> Toy:
    """Return the case with changed rows of some matrices, as {"up": {3: 0.0}}.

    A number fills the row, and (i,) copies row i; biases change in the same way.
    """
    new = {}
    for name, entries in rows.items():
        old = case.layer.matrices().get(name)
        if old is None:
            continue
        weight, bias = old.weight.clone(), None if old.bias is None else old.bias.clone()
        for row, value in entries.items():
            weight[row] = weight[value[0]] if isinstance(value, tuple) else value
            if bias is not None:
                bias[row] = bias[value[0]] if isinstance(value, tuple) else value
        new[name] = Linear(weight, bias)
    return watched(case.layer.with_matrices(**new), case.x)


def few_tokens(kind: tuple) -> Toy:
    return toy(*kind, tokens=10)


def dead_neuron(kind: tuple) -> Toy:
    return changed(toy(*kind, tokens=TOKENS), up={3: 0.0})


def zero_head(kind: tuple) -> Toy:
    first = dict.fromkeys(range(HEAD), 0.0)
    return changed(toy(*kind, tokens=TOKENS), q=first, k=first, v=first)


def duplicated_row(kind: tuple) -> Toy:
    return changed(
        toy(*kind, tokens=TOKENS),
        q={1: (0,)},
        k={1: (0,)},
        v={1: (0,)},
        up={5: (4,)},
        gate={5: (4,)},
    )


def constant_activation(kind: tuple) -> Toy:
    case = toy(*kind, tokens=TOKENS)
    x = case.x.clone()
    x[:, 2] = 1.5
    return watched(case.layer, x)


def scaled(kind: tuple, change) -> Toy:
    """Return the case with inputs changed by `change`."""
    case = toy(*kind, tokens=TOKENS)
    return watched(case.layer, change(case.x.clone()))


def massive_activation(kind: tuple) -> Toy:
    """Add an activation ten thousand times larger than all others, as in trained models."""

    def change(x):
        x[0, 2] = 1e4 * x.abs().max()
        return x

    return scaled(kind, change)


def near_duplicates(kind: tuple) -> Toy:
    """Make two input directions equal up to the seventh digit."""

    def change(x):
        x[:, 1] = x[:, 0] + 1e-7 * x[:, 1]
        return x

    return scaled(kind, change)


def ill_scaled(kind: tuple) -> Toy:
    """Scale the input directions over eight orders of magnitude."""
    return scaled(kind, lambda x: x * torch.logspace(4, -4, x.shape[1], dtype=x.dtype))


def of_float16(kind: tuple) -> Toy:
    """Round inputs to float16, including a number with a square that overflows."""

    def change(x):
        x[0, 2] = 3e4
        return x.half().to(x.dtype)

    return scaled(kind, change)


def of_bfloat16(kind: tuple) -> Toy:
    """Round inputs far from zero to bfloat16, so that differences have few digits."""
    return scaled(kind, lambda x: (x + 50.0).bfloat16().to(x.dtype))


CASES = {
    f.__name__: f for f in (few_tokens, dead_neuron, zero_head, duplicated_row, constant_activation)
}
HARD = CASES | {
    f.__name__: f
    for f in (massive_activation, near_duplicates, ill_scaled, of_float16, of_bfloat16)
}
ROWS = [(name, options) for name in METHODS for options in ({}, *VARIANTS.get(name, ()))]


@pytest.mark.one_in(10, each="row")
@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: "-".join(map(str, (row[0], *row[1].values())))
)
def test_every_method_gives_finite_results_on_hard_inputs(row: tuple, case: str) -> None:
    method, options = METHODS[row[0]], METHODS[row[0]].choose(row[1])
    for kind in KINDS if case in CASES else KINDS[-1:]:
        result = HARD[case](kind)
        single = {
            n: Linear(p.weight.float(), None if p.bias is None else p.bias.float())
            for n, p in result.layer.matrices().items()
        }
        rounded = result.layer.with_matrices(**single)
        for layer in (result.layer, rounded):
            factors = method.factor(layer, result.moments, options)
            for name, factor in factors.items():
                assert torch.isfinite(factor.values).all()
                ranks = factor.cost.ranks()
                tried = {ranks[0], ranks[len(ranks) // 2]}
                for rank in tried if layer is rounded else tried | {factor.cost.cap}:
                    for projection in truncate(layer, factors, {name: rank}).matrices().values():
                        assert torch.isfinite(projection.weight).all()
                        assert projection.bias is None or torch.isfinite(projection.bias).all()


# ---- errors on the tokens, and their minimum


def tail(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    return (torch.linalg.svdvals(matrix)[rank:] ** 2).sum()


def states(case: Toy, name: str) -> torch.Tensor:
    """Return head states on the tokens, [n, N, d_h]."""
    return apply(case.layer.matrices()[name], case.x).unflatten(-1, (-1, HEAD)).transpose(0, 1)


def matrix_error(case: Toy, name: str, factor, rank: int):
    inputs = {"attn_in": case.x, "attn_out": case.a, "mlp_in": case.x, "mlp_hidden": case.z}[
        TAPS[name]
    ]
    dense = inputs @ case.layer.matrices()[name].weight.T
    small = factor.truncate(case.layer, rank).matrices()[name].weight
    return ((dense - inputs @ small.T) ** 2).sum(), tail(dense, rank), (dense**2).sum()


def score_error(case: Toy, name: str, factor, rank: int, centered: bool = False):
    """Return the score error of all pairs of tokens per kv head, with query heads stacked.

    `centered` subtracts the mean of each query over the keys.
    """
    small = replace(case, layer=factor.truncate(case.layer, rank))
    a, sums = case.layer.attention, [0.0, 0.0, 0.0]
    narrow_q, narrow_k = (
        apply(small.layer.matrices()[n], case.x).unflatten(-1, (-1, rank)).transpose(0, 1)
        for n in "qk"
    )
    for g in range(a.n_kv):
        group = slice(g * a.group, (g + 1) * a.group)
        dense = states(case, "q")[group].flatten(0, 1) @ states(case, "k")[g].T
        approximation = narrow_q[group].flatten(0, 1) @ narrow_k[g].T
        if centered:
            dense, approximation = (
                dense - dense.mean(1, keepdim=True),
                approximation - approximation.mean(1, keepdim=True),
            )
        for i, part in enumerate(
            (((dense - approximation) ** 2).sum(), tail(dense, rank), (dense**2).sum())
        ):
            sums[i] = sums[i] + part
    return sums


def value_error(case: Toy, name: str, factor, rank: int, side: str):
    """Return the error of head outputs ("outputs") or of single value states ("values") per kv
    head.
    """
    a, sums = case.layer.attention, [0.0, 0.0, 0.0]
    out, mapped = output_heads(a.o.weight, a.n_q), factor.out[..., :rank]
    for g in range(a.n_kv):
        group, maps = range(g * a.group, (g + 1) * a.group), factor.v_maps[g, :rank]
        s = states(case, "v")[g] if side != "outputs" else case.a.unflatten(-1, (-1, HEAD))[:, g]
        dense = torch.cat([s @ out[i].T for i in group], 1)
        approximation = torch.cat([s @ maps.T @ mapped[i].T for i in group], 1)
        if side == "principal":
            _, _, vt = torch.linalg.svd(s, full_matrices=False)
            best = (
                (dense - torch.cat([s @ vt[:rank].T @ vt[:rank] @ out[i].T for i in group], 1)) ** 2
            ).sum()
        else:
            best = tail(dense, rank)
        for i, part in enumerate((((dense - approximation) ** 2).sum(), best, (dense**2).sum())):
            sums[i] = sums[i] + part
    return sums


def regression_error(dense: torch.Tensor, inputs: torch.Tensor, linear: Linear, intercept: bool):
    """Return the error of `linear` on its inputs, that of a pseudo-inverse, and the total."""
    design = (
        torch.cat((inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)), 1)
        if intercept
        else inputs
    )
    best = design @ torch.linalg.pinv(design, rtol=1e-12) @ dense
    total = ((dense - dense.mean(0)) ** 2).sum() if intercept else (dense**2).sum()
    return ((dense - apply(linear, inputs)) ** 2).sum(), ((dense - best) ** 2).sum(), total


def mlp_error(case: Toy, name: str, factor, rank: int, intercept: bool):
    down, small = case.layer.mlp.down, factor.truncate(case.layer, rank).mlp.down
    if not intercept:
        down, small = Linear(down.weight), Linear(small.weight)
    return regression_error(apply(down, case.z), case.z[:, factor.order[:rank]], small, intercept)


def refit_error(case: Toy, name: str, factor, rank: int):
    a = case.layer.attention
    small = factor.truncate(case.layer, rank).attention
    maps = factor.v_maps[:, :rank].repeat_interleave(a.group, 0)
    narrow = torch.einsum("nhs,hrs->nhr", case.a.unflatten(-1, (-1, HEAD)), maps).flatten(1)
    return regression_error(apply(a.o, case.a), narrow, small.o, True)


def closed_form(method: str, name: str, kind: tuple):
    """Return a function that compares a slot with its closed form.

    Return None if columns are only selected, without an inverse.
    """
    group, rotary = kind[0] // kind[1], kind[2] == "rotary"
    if method == "svd_llm":
        return matrix_error
    if name == "qk" and method in ("a3", "fused") and not rotary:
        return lambda *args: score_error(*args, centered=method == "fused")
    if name == "ov" and method in ("a3", "modegpt"):
        side = (
            ("outputs" if group == 1 else "values")
            if method == "a3"
            else ("values" if group == 1 else "principal")
        )
        return lambda *args: value_error(*args, side=side)
    if name == "ov" and method == "fused":
        return refit_error
    if name == "mlp" and method in ("modegpt", "fused"):
        return lambda *args: mlp_error(*args, intercept=method == "fused")
    return None


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ["svd_llm", "a3", "modegpt", "fused"])
def test_error_equals_that_of_the_pseudo_inverse(method: str, case: str) -> None:
    for kind in KINDS:
        result = CASES[case](kind)
        moments = Moments(
            {need: result.moments.values[need] for need in METHODS[method].needs},
            result.moments.tokens,
        )
        options = METHODS[method].choose(UNDAMPED.get(method, {}))
        for name, factor in METHODS[method].factor(result.layer, moments, options).items():
            measure = closed_form(method, name, kind)
            for rank in (1, 4, 7) if measure else ():
                error, best, total = measure(result, name, factor, rank)
                assert abs(float(error - best)) <= 1e-6 * float(total), (
                    kind,
                    name,
                    rank,
                    float(error / total),
                    float(best / total),
                )


@pytest.mark.parametrize("case", CASES)
def test_plain_svd_leaves_the_tail_of_the_weight(case: str) -> None:
    for kind in KINDS:
        result = CASES[case](kind)
        for name, factor in METHODS["svd"].factor(result.layer, result.moments).items():
            weight = result.layer.matrices()[name].weight
            for rank in (1, 4, 7):
                gap = weight - factor.truncate(result.layer, rank).matrices()[name].weight
                assert abs(float((gap**2).sum() - tail(weight, rank))) <= 1e-6 * float(
                    (weight**2).sum()
                )


def test_hard_cases_have_their_named_properties() -> None:
    kind = KINDS[0]
    assert torch.linalg.matrix_rank(few_tokens(kind).moments.second("attn_in")) < D
    assert (dead_neuron(kind).z[:, 3] == 0).all()
    assert (zero_head(kind).a[:, :HEAD] == 0).all()
    twice = duplicated_row(kind)
    assert torch.equal(
        heads(twice.layer.attention.k.weight, 3)[0, 0],
        heads(twice.layer.attention.k.weight, 3)[0, 1],
    )
    assert torch.equal(twice.z[:, 4], twice.z[:, 5])
    assert constant_activation(kind).x[:, 2].unique().numel() == 1
