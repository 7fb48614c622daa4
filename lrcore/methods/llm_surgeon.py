"""The LLM Surgeon: heads and neurons removed where the loss curves least, and the rest updated.

The loss of a change dW of a projection is `tr(dW^T G dW A) / 2`, with the Kronecker factors of the
Fisher information `A = E[x x^T]` of its input and `G = E[g g^T]` of the gradients by its output
(K-FAC). A head or neuron is removed with its columns of the output or down projection, where its
whole effect passes; its rows of the other matrices then have none.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..elimination import elimination_order
from ..layer import Attention, Layer, Linear, output_heads
from ..linalg import cholesky, inverse_of, leading_refit, reordered_cholesky, roots
from ..lower import Lower
from ..options import option
from ..spectra import Cost
from ..statistics import Moments
from ..threads import threads_for
from .costs import heads_cost, mlp_cost
from .factors import Factor, LayerFactors, NeuronOrder, NystromOrder, mlp_of
from .grams import diagonal_blocks
from .heads import GroupOrder, of_groups
from .method import MATRICES, Method
from .modegpt import DAMPING


@dataclass(frozen=True)
class SurgeonOptions:
    update: bool = option(
        True,
        "what is left makes up for what is removed (LLM-Surgeon); off: it stays as it is (K-OBD)",
    )


DEFAULT = SurgeonOptions()


def factor(layer: Layer, moments: Moments, options: SurgeonOptions = DEFAULT) -> LayerFactors:
    """Rank the groups of heads and the neurons of one layer, those that it has.

    The loss curve is the predicted rise of the loss in nats/token. With update it is exact for a
    loss that is quadratic with these factors; without, terms between what is removed are left out.
    """
    solved: LayerFactors = {}
    for name in layer.structures:
        solve = surgeon_heads if name == "heads" else surgeon_neurons
        solved[name] = solve(layer, moments, options.update)
    return solved


def surgeon_neurons(layer: Layer, moments: Moments, update: bool = True) -> Factor:
    """Neurons by `w_j^T G w_j / (2 [A^{-1}]_jj)` of their column in the down projection, eliminated
    one by one, with the exact refit; without update by `A_jj w_j^T G w_j / 2`.
    """
    m = mlp_of(layer)
    down, gram = m.down.weight.double(), moments.second("mlp_hidden")
    sided = roots(moments.values["down", "curvature"])[0] @ down
    if not update:
        costs = gram.diagonal() * sided.square().sum(0) / 2
        order = costs.sort(descending=True, stable=True).indices
        costs = costs[order]
        return NeuronOrder(costs.sqrt(), mlp_cost(m), None, order, scores=costs)
    order = elimination_order(sided, gram, DAMPING)
    lower = reordered_cholesky(gram, order, DAMPING)
    values = (sided[:, order] @ lower).norm(dim=0) / 2**0.5
    product = down[:, order] @ lower
    factor = Lower.of(lower)
    return NystromOrder(values, mlp_cost(m), None, order, factor, product, scores=values**2)


@dataclass(frozen=True, eq=False)
class RefitGroups:
    """Attention by selection of groups, and refit of the output projection on what is left.

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
        a, kept = layer.attention, self.order[:rank].sort()
        inputs = rank * a.group * a.v_size
        refit = leading_refit(self.cholesky, self.product, inputs)
        columns = refit.unflatten(1, (rank, -1))[:, kept.indices].flatten(1)
        o = Linear(columns.to(a.o.weight.dtype), a.o.bias)
        return replace(layer, attention=replace(of_groups(a, kept.values), o=o))


def surgeon_heads(layer: Layer, moments: Moments, update: bool = True) -> Factor:
    """Groups g by `tr(W_g^T G W_g ([A^{-1}]_gg)^{-1}) / 2` of their columns in the output
    projection, eliminated one by one, with the exact refit; without update by
    `tr(W_g^T G W_g A_gg) / 2`.
    """
    a, gram = layer.attention, moments.second("attn_out")
    sided = roots(moments.values["o", "curvature"])[0] @ a.o.weight.double()
    if not update:
        own = output_heads(sided, a.n_kv)  # [n_kv, d, group * v_size]
        costs = (own @ diagonal_blocks(gram, a.n_kv) * own).sum((1, 2)).clamp_min(0) / 2
        order = costs.sort(descending=True, stable=True).indices
        costs = costs[order]
        return GroupOrder(costs.sqrt(), heads_cost(a), None, order, scores=costs)
    order = group_elimination(sided, gram, a)
    inputs = torch.arange(len(gram), device=gram.device).view(a.n_kv, -1)[order].flatten()
    lower = reordered_cholesky(gram, inputs, DAMPING)
    squares = (sided[:, inputs] @ lower).square().sum(0).view(a.n_kv, -1).sum(1) / 2
    product = a.o.weight.double()[:, inputs] @ lower
    factor = Lower.of(lower)
    return RefitGroups(squares.sqrt(), heads_cost(a), None, order, factor, product, squares)


def group_elimination(weight: Tensor, gram: Tensor, a: Attention) -> Tensor:
    """Groups of columns of `weight` by importance for `weight @ x`, most important first, [n_kv].

    As `linalg.elimination_order`, a group at a time: `tr(W_g ([C^{-1}]_gg)^{-1} W_g^T)` is what the
    removal of group g costs once the others make up for it. weight [d, n]; gram C [n, n].
    """
    inverse = inverse_of(cholesky(gram, DAMPING))
    weight = weight.clone()
    places = torch.arange(len(gram), device=gram.device).view(a.n_kv, -1)
    left, removed = list(range(a.n_kv)), []
    while left:
        costs = []
        for group in left:
            own = places[group]
            solved = _solved(inverse[own][:, own], weight[:, own].mT)
            costs.append((weight[:, own].mT * solved).sum())
        least = left.pop(int(torch.stack(costs).argmin()))
        own = places[least]
        rows = _solved(inverse[own][:, own], inverse[own])  # [size, n]
        weight -= weight[:, own] @ rows
        inverse -= inverse[:, own] @ rows
        removed.append(least)
    return torch.tensor(removed[::-1], device=gram.device)


def _solved(m: Tensor, target: Tensor) -> Tensor:
    """X with `m X = target`: m [n, n], target [n, k] -> [n, k]."""
    with threads_for(m):
        solution: Tensor = torch.linalg.solve(m, target)
    return solution


METHOD = Method(
    name="llm_surgeon",
    paper="The LLM Surgeon (van der Ouderaa et al., ICLR 2024)",
    notes="Whole heads and neurons by the curvature of the loss, from Kronecker factors; what is "
    "left is updated for what goes (update=off: K-OBD). One backward pass per calibration window "
    "(64 at most). One shot: to take several, compress what was compressed. With GQA a key and a "
    "value head go with all their query heads. Under a query-key norm over the whole width the "
    "attention stays as it is. Rows are not removed on their own.",
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
