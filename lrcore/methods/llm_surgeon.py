"""The LLM Surgeon: heads and neurons are removed along the least curvature of the loss, and the
remaining weights are updated.

The loss of a change dW of a projection is `tr(dW^T G dW A) / 2`, with the Kronecker factors of the
Fisher information (K-FAC): `A = E[x x^T]` of the input and `G = E[g g^T]` of the gradients with
respect to the output. A head or neuron is removed with the columns of the output or down
projection that read it, and the corresponding rows of the remaining matrices then have no effect.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layers.elimination import elimination_order
from ..layers.layer import Attention, Layer, Linear, output_heads
from ..layers.linalg import Lower, cholesky, inverse_of, leading_refit, reordered_cholesky, roots
from ..layers.spectra import Cost
from ..layers.statistics import Moments
from ..system.settings import option
from ..system.threads import threads_for
from .costs import heads_cost, mlp_cost
from .factors import Factor, LayerFactors, NeuronOrder, NystromOrder, mlp_of
from .grams import diagonal_blocks
from .heads import GroupOrder, select_groups
from .method import MATRICES, Method
from .modegpt import refit_damping, shrinkage_option


@dataclass(frozen=True)
class SurgeonOptions:
    update: bool = option(
        True,
        "remaining weights compensate for the removed ones (LLM-Surgeon); off: unchanged (K-OBD)",
    )
    shrinkage: bool = shrinkage_option()


DEFAULT = SurgeonOptions()


def factor(layer: Layer, moments: Moments, options: SurgeonOptions = DEFAULT) -> LayerFactors:
    """Return the order of the groups of heads and of the neurons of a layer, if present.

    The loss curve is the predicted increase of the loss in nats/token. With update it is exact for
    a loss that is quadratic with these factors; without update, terms between removed structures
    are neglected.
    """
    solved: LayerFactors = {}
    for name in layer.structures:
        solve = surgeon_heads if name == "heads" else surgeon_neurons
        solved[name] = solve(layer, moments, options)
    return solved


def surgeon_neurons(layer: Layer, moments: Moments, options: SurgeonOptions = DEFAULT) -> Factor:
    """Return the neurons by `w_j^T G w_j / (2 [A^{-1}]_jj)` of their columns in the down
    projection.

    They are eliminated one by one, with the exact refit; without update they are ranked by
    `A_jj w_j^T G w_j / 2`.
    """
    m = mlp_of(layer)
    down, gram = m.down.weight.double(), moments.second("mlp_hidden")
    scaled = roots(moments.values["down", "curvature"])[0] @ down  # G^{1/2} W, [d, d_f]
    if not options.update:
        costs = gram.diagonal() * scaled.square().sum(0) / 2
        order = costs.sort(descending=True, stable=True).indices
        costs = costs[order]
        return NeuronOrder(costs.sqrt(), mlp_cost(m), None, order, scores=costs)
    damping = refit_damping(gram, moments, options.shrinkage)
    order = elimination_order(scaled, gram, damping)
    lower = reordered_cholesky(gram, order, damping)
    values = (scaled[:, order] @ lower).norm(dim=0) / 2**0.5
    product = down[:, order] @ lower
    factor = Lower.of(lower)
    return NystromOrder(values, mlp_cost(m), None, order, factor, product, scores=values**2)


@dataclass(frozen=True, eq=False)
class RefitGroups:
    """Attention by selection of groups, and refit of the output projection on the remaining groups.

    With A permuted by order [n_kv], group after group, and A = L L^T, the refit on the first m
    inputs is `(W L)[:, :m] L[:m, :m]^{-1}`. cholesky: L [n, n]; product: W L [d, n]; scores [n_kv]:
    see `Spectrum`.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    order: Tensor
    cholesky: Lower
    product: Tensor
    scores: Tensor

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a, selected = layer.attention, self.order[:rank].sort()
        inputs = rank * a.group * a.v_size
        refit = leading_refit(self.cholesky, self.product, inputs)
        # [d, rank, group * v_size] in ascending order of the groups -> [d, rank * group * v_size]
        columns = refit.unflatten(1, (rank, -1))[:, selected.indices].flatten(1)
        o = Linear(columns.to(a.o.weight.dtype), a.o.bias)
        return replace(layer, attention=replace(select_groups(a, selected.values), o=o))


def surgeon_heads(layer: Layer, moments: Moments, options: SurgeonOptions = DEFAULT) -> Factor:
    """Return the groups g by `tr(W_g^T G W_g ([A^{-1}]_gg)^{-1}) / 2` of their columns in the
    output projection.

    They are eliminated one by one, with the exact refit; without update they are ranked by
    `tr(W_g^T G W_g A_gg) / 2`.
    """
    a, gram = layer.attention, moments.second("attn_out")
    scaled = roots(moments.values["o", "curvature"])[0] @ a.o.weight.double()  # G^{1/2} W
    if not options.update:
        by_group = output_heads(scaled, a.n_kv)  # [n_kv, d, group * v_size]
        products = by_group @ diagonal_blocks(gram, a.n_kv) * by_group
        costs = products.sum((1, 2)).clamp_min(0) / 2
        order = costs.sort(descending=True, stable=True).indices
        costs = costs[order]
        return GroupOrder(costs.sqrt(), heads_cost(a), None, order, scores=costs)
    damping = refit_damping(gram, moments, options.shrinkage)
    order = group_elimination(scaled, gram, a, damping)
    inputs = torch.arange(len(gram), device=gram.device).view(a.n_kv, -1)[order].flatten()
    lower = reordered_cholesky(gram, inputs, damping)
    squares = (scaled[:, inputs] @ lower).square().sum(0).view(a.n_kv, -1).sum(1) / 2
    product = a.o.weight.double()[:, inputs] @ lower
    factor = Lower.of(lower)
    return RefitGroups(squares.sqrt(), heads_cost(a), None, order, factor, product, squares)


def group_elimination(weight: Tensor, gram: Tensor, a: Attention, damping: float) -> Tensor:
    """Return groups of columns of `weight` by importance for `weight @ x`, most important first,
    [n_kv].

    As `elimination.elimination_order`, a group at a time: `tr(W_g ([C^{-1}]_gg)^{-1} W_g^T)` is the
    error after the removal of group g if the remaining groups compensate for it. weight [d, n];
    gram C [n, n]; damping: see `linalg.cholesky`.
    """
    inverse = inverse_of(cholesky(gram, damping))
    weight = weight.clone()
    columns_of = torch.arange(len(gram), device=gram.device).view(a.n_kv, -1)  # [n_kv, size]
    remaining, removed = list(range(a.n_kv)), []
    while remaining:
        costs = []
        for group in remaining:
            columns = columns_of[group]
            solved = _solved(inverse[columns][:, columns], weight[:, columns].mT)
            costs.append((weight[:, columns].mT * solved).sum())
        cheapest = remaining.pop(int(torch.stack(costs).argmin()))
        columns = columns_of[cheapest]
        rows = _solved(inverse[columns][:, columns], inverse[columns])  # [size, n]
        weight -= weight[:, columns] @ rows
        inverse -= inverse[:, columns] @ rows
        removed.append(cheapest)
    return torch.tensor(removed[::-1], device=gram.device)


def _solved(m: Tensor, target: Tensor) -> Tensor:
    """Return X with `m X = target`: m [n, n], target [n, k] -> [n, k]."""
    with threads_for(m):
        solution: Tensor = torch.linalg.solve(m, target)
    return solution


METHOD = Method(
    name="llm_surgeon",
    paper="The LLM Surgeon (van der Ouderaa et al., ICLR 2024)",
    summary="Removes attention heads and neurons by loss curvature, and updates the rest.",
    notes="Complete heads and neurons by the curvature of the loss, from Kronecker factors. The "
    "remaining weights are updated (update=off: K-OBD). A backward pass per calibration window (at "
    "most 64). One shot; for several shots, compress the compressed model again. With GQA a key "
    "and a value head are removed with all their query heads. Attention with a query-key norm over "
    "the complete width is unchanged. Single rows are not removed.",
    factor=factor,
    components=("heads", "mlp"),
    needs=frozenset(
        {
            ("attn_out", "second"),
            ("mlp_hidden", "second"),
            ("o", "curvature"),
            ("down", "curvature"),
        }
    ),
    shrinks_kv=True,
    holds={"heads": MATRICES[:4], "mlp": MATRICES[4:]},
    options=SurgeonOptions,
    copies=4,
)
