"""`fused`: the best parts of the papers in one method. Ours; in no paper.

* QK without rotary: A3's joint SVD on the *centred* keys. A shift of every key moves all scores of
  a query alike and leaves its softmax unchanged, so the mean of the keys costs no rank; or on the
  keys under the attention weights of each query (lrcore/models/attended_keys.py). With
  rotary: whole pairs, by MoDeGPT's post-rotary scores; columns that do not turn as without rotary,
  two directions in the place of a pair, whichever loses least.
* OV: the value map is computed from the centred moments of the head *outputs*, summed over the
  group that shares a value head (A3 uses the value states for GQA). Then the whole output
  projection is refit by least squares on the narrowed head outputs, across heads.
* MLP: neurons are eliminated as in optimal brain surgeon, in the metric of the output, with the
  exact refit.
* Each of the three parts also as low-rank pairs, see lrcore/methods/pairs.py: policies that choose
  between forms (lrcore/alternatives.py) take the one that loses less. Under a budget of the KV
  cache QK and OV as cached latents instead, see lrcore/methods/cached_latents.py.
* Means are folded into the biases of the output and down projections (LatentLLM, appendix B.2); a
  projection without a bias gets one.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..elimination import elimination_order
from ..layer import Attention, Layer, Linear, map_rows, output_heads
from ..linalg import (
    cholesky,
    eigh_descending,
    leading_refit,
    reordered_cholesky,
    roots,
    times_lower,
)
from ..lower import Lower
from ..options import option
from ..parallel import at_once
from ..spectra import Cost, Form
from ..statistics import ATTENDED_KEYS, COMMON_TAPS, Moments
from .attention_factors import ColumnOrder, HeadMaps
from .cached_latents import cached_latents
from .costs import mlp_cost, ov_cost, qk_cost
from .experts import EachExpert
from .factors import Factor, LayerFactors, NystromOrder, mlp_of, moved_bias, pooled
from .grams import by_group, head_gram, output_gram
from .method import COMPONENT_MATRICES, COMPONENTS, Method
from .modegpt import DAMPING, column_losses, qk_cr
from .pairs import pairs
from .scores import by_pairs, joint_blocks, joint_scores, ordered, still_directions, still_pairs

NEEDS = frozenset(
    {("q_rotated", "square"), ("k_rotated", "square")}
    | {(tap, statistic) for tap in COMMON_TAPS for statistic in ("second", "mean")},
)

FORMS = (
    {name: Form(name, "narrowed") for name in COMPONENTS}
    | {matrix: Form(part, "pairs") for part, own in COMPONENT_MATRICES.items() for matrix in own}
    | {"joint_qk": Form("qk", "pairs")}
    | {"latent_k": Form("qk", "latent"), "latent_v": Form("ov", "latent")}
)


@dataclass(frozen=True)
class FusedOptions:
    qk: str = option(
        "centred",
        "The metric of the keys, without rotary. centred: their covariance over the tokens. "
        "softmax: their covariance under the attention weights of each query; takes a pass more "
        "over the calibration windows, where the family has it (not bloom, mpt and gpt_neo).",
        choices=("centred", "softmax"),
    )
    forms: str = option(
        "auto",
        "The forms that parts have besides narrowed heads and removed neurons. pairs: every matrix "
        "as a low-rank pair. latents: keys and values as cached latents, and the MLP as it is. "
        "narrowed: none, where a part can be narrowed, which is all that policies other than "
        "probed take, and solved in a fraction of the time. auto: latents under budget kv; "
        "narrowed where a model is compressed at once by such a policy; else pairs.",
        choices=("auto", "pairs", "latents", "narrowed"),
    )


DEFAULT = FusedOptions()


def factor(layer: Layer, moments: Moments, options: FusedOptions = DEFAULT) -> LayerFactors:
    """Solve QK, OV and MLP of one layer, those that it has, for all ranks: narrowed, and every
    matrix as a pair, with forms=narrowed those alone that no narrowed part holds; or QK and OV
    narrowed, and keys and values as cached latents.
    """
    latents = options.forms == "latents"
    a = layer.attention
    qk = qk_pairs if a.position == "rotary" else qk_centred
    solve: dict[str, Callable[[], Factor]] = {
        "qk": lambda: qk(a, moments),
        "ov": lambda: ov_refit(a, moments),
        "mlp": lambda: mlp_elimination(layer, moments),
    }
    own = [name for name in layer.components if not (latents and name == "mlp")]
    works = {name: solve[name] for name in own} | _pairs(layer, moments, options.forms)
    solved = at_once(lambda name: works[name](), _as_large(layer, works))
    return solved | (cached_latents(layer, moments) if latents else {})


def _pairs(layer: Layer, moments: Moments, forms: str) -> dict[str, Callable[[], Factor]]:
    """What solves the matrices as pairs, as far as the option `forms` wants them."""
    if forms == "latents":
        return {}
    solve = pairs(layer, moments)
    if forms != "narrowed":
        return solve
    held = {name for name, form in FORMS.items() if form.part in layer.components}
    return {name: work for name, work in solve.items() if name not in held}


def _as_large(layer: Layer, slots: Collection[str]) -> dict[str, Tensor]:
    """A tensor as large as what is decomposed for each slot."""
    matrices = layer.matrices()
    shapes = dict.fromkeys(slots, layer.attention.o.weight)
    shapes |= {name: one.weight for name, one in matrices.items() if name in slots}
    if "mlp" in slots:
        down = matrices["down"].weight
        shapes["mlp"] = down[:1].expand(down.shape[1], -1)  # [n, n], no numbers of its own
    return shapes


def qk_centred(a: Attention, moments: Moments) -> HeadMaps:
    """Joint SVD of the scores up to a shift per query: `V`, the eigenvectors of
    `K^{1/2} (sum_i G_q,i) K^{1/2}`, K the covariance of the keys; under the attention weights
    where the moments have that.

    q_maps [n_q, d_h, d_h], k_maps [n_kv, d_h, d_h]. Equals `a3.qk_svd` (MHA) or `a3.qk_joint` (GQA)
    where the keys have mean zero; never worse in the variance of the scores over keys.
    """
    query, key = centred_grams(a, moments)
    key = moments.values.get(ATTENDED_KEYS, key)
    squares, q_maps, k_maps = joint_scores(query, key)
    s = squares.sqrt()
    return HeadMaps(pooled(s), qk_cost(a), s, q_maps.repeat_interleave(a.group, 0), k_maps)


def qk_pairs(a: Attention, moments: Moments) -> ColumnOrder:
    """QK with rotary: `modegpt.qk_cr`; where only a part of a head turns, pairs and directions by
    their squared losses, those of the columns that do not turn as in `qk_centred`.
    """
    still = still_pairs(a)
    if still is None:
        return qk_cr(a, moments)
    solve = joint_blocks(*centred_grams(a, moments))
    squares, maps = still_directions(column_losses(a, moments), still, solve)
    return ordered(a, by_pairs(squares), by_pairs(squares), maps)


def centred_grams(a: Attention, moments: Moments) -> tuple[Tensor, Tensor]:
    """Second moments of the queries, summed over the group, and the covariance of the keys, before
    rotary: [n_kv, qk_size, qk_size] each.
    """
    centred = Moments(
        {
            ("attn_in", "second"): moments.centred("attn_in"),
            ("attn_in", "mean"): 0 * moments.mean("attn_in"),
        },
        moments.tokens,
    )
    unbiased = replace(a, k=Linear(a.k.weight))
    return by_group(head_gram(a, "q", moments), a).sum(1), head_gram(unbiased, "k", centred)


@dataclass(frozen=True, eq=False)
class RefitValueMaps:
    """OV: `v^ = T v`, T the first r rows of v_maps [n_kv, d_h, d_h]; the output projection is refit
    on the narrowed head outputs a^ = N a, and its bias takes what is lost of their mean.

    With the entries of a^ in an order that has the first of all heads first, and C the covariance
    of a, `N C N^T = L L^T` serves every rank: the refit on the first m entries is
    `(W_o C N^T L^{-T})[:, :m] L[:m, :m]^{-1}`. cholesky: L [n_q * d_h, n_q * d_h]; product:
    W_o C N^T L^{-T} [d, n_q * d_h]; means: of a [n_q * d_h] and of a^, in that order.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    v_maps: Tensor
    cholesky: Lower
    product: Tensor
    means: tuple[Tensor, Tensor]

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a, dtype = layer.attention, layer.attention.o.weight.dtype
        m = a.n_q * rank
        refit = leading_refit(self.cholesky, self.product, m)
        mean, narrowed = self.means
        bias = moved_bias(a.o, a.o.weight.double() @ mean - refit @ narrowed[:m])
        by_head = refit.unflatten(1, (rank, a.n_q)).transpose(1, 2).flatten(1)
        o, v = Linear(by_head.to(dtype), bias), map_rows(a.v, self.v_maps[:, :rank])
        latent = a.latent.replace("v", "")
        return replace(layer, attention=replace(a, v=v, o=o, v_size=rank, latent=latent))


def ov_refit(a: Attention, moments: Moments) -> RefitValueMaps:
    """`T = V^T G^{-1/2}`, V the eigenvectors of `G^{1/2} (sum_i W_o,i^T W_o,i) G^{1/2}`, G the mean
    covariance of the group's outputs.

    The loss curve is that of the map before the refit across heads: an upper bound for MHA, which
    the refit improves on, and an estimate for GQA.
    """
    covariance = moments.centred("attn_out")
    own = Moments({("attn_out", "second"): covariance}, moments.tokens)
    root, inverse = roots(by_group(output_gram(a, own), a).mean(1))
    out = output_heads(a.o.weight.double(), a.n_q)
    squares, v = eigh_descending(root @ by_group(out.mT @ out, a).sum(1) @ root)
    cost = ov_cost(a)
    if a.o.bias is None:  # the mean needs a bias to go to
        cost = cost.with_biases(a.o.weight.shape[0])
    v_maps, mean, weight = v.mT @ inverse, moments.mean("attn_out"), a.o.weight.double()
    each = v_maps.repeat_interleave(a.group, 0)  # [n_q, d_h, d_h]
    # [d_h, n_q, d_h], the entries of a^ in order, times those of a: N C N^T and W_o C N^T
    cross = torch.einsum("nrs,nsm->rnm", each, covariance.unflatten(0, (a.n_q, -1))).flatten(0, 1)
    gram = torch.einsum("nrs,mns->mrn", each, cross.unflatten(1, (a.n_q, -1))).flatten(1)
    lower = cholesky(gram, DAMPING)
    product = torch.linalg.solve_triangular(lower, cross @ weight.mT, upper=False).mT
    narrowed = (each @ mean.unflatten(0, (a.n_q, -1)).unsqueeze(-1)).squeeze(-1).mT.flatten()
    return RefitValueMaps(
        pooled(squares.sqrt()),
        cost,
        squares.sqrt(),
        v_maps,
        Lower.of(lower),
        product,
        (mean, narrowed),
    )


def mlp_elimination(layer: Layer, moments: Moments) -> NystromOrder:
    """Optimal brain surgeon: remove the neurons one by one, always the one whose removal changes
    the output least after the remaining ones are refit.

    That is the j of least `|w_j|^2 / [C^{-1}]_jj`, C the covariance of the hidden state. The loss
    curve is exact.
    """
    mlp = mlp_of(layer)
    down = mlp.down.weight.double()
    # made twice: of a wide MLP it takes gigabytes, which nothing holds in between
    order = elimination_order(down, moments.centred("mlp_hidden"), DAMPING)
    lower = reordered_cholesky(moments.centred("mlp_hidden"), order, DAMPING)
    product = times_lower(down[:, order], lower)
    cost = mlp_cost(mlp)
    if mlp.down.bias is None:
        cost = cost.with_biases(down.shape[0])
    return NystromOrder(
        product.norm(dim=0),
        cost,
        None,
        order,
        Lower.of(lower),
        product,
        moments.mean("mlp_hidden"),
    )


METHOD = Method(
    name="fused",
    paper="ours",
    notes="QK: centred keys without rotary, whole pairs with rotary, both where a part of a head "
    "turns. OV: map on the head outputs, output projection refit across heads. MLP: elimination of "
    "neurons with exact refit. Each part also as low-rank pairs (LatentLLM's), which leave the KV "
    "cache as it is: policy probed takes, part by part, the form that loses less. Under budget kv "
    "keys and values have cached latents as their other form. "
    "Means go into the biases; projections without one get one. Unless "
    "the recipe says 'refit: off', each layer is then refit on the outputs of the compressed "
    "layers before it, towards the dense residual stream.",
    factor=EachExpert(factor),
    components=COMPONENTS,
    needs=NEEDS,
    extra_needs={("qk", "softmax"): frozenset({ATTENDED_KEYS})},
    shrinks_kv=True,
    holds={
        **COMPONENT_MATRICES,
        "joint_qk": COMPONENT_MATRICES["qk"],
        "latent_k": COMPONENT_MATRICES["qk"],
        "latent_v": COMPONENT_MATRICES["ov"],
    },
    options=FusedOptions,
    under={"kv": {"forms": "latents"}},
    first={"forms": "narrowed"},
    refit=True,
    adds_biases=True,
    forms=FORMS,
    copies=5,
)
