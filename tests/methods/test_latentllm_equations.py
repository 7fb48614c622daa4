"""LatentLLM against the printed `d x d` formulas and against brute force over tokens."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from toy_layer import D, apply, relative, rotated, toy

from lrcore.forms import BlockDiagonal, IdentityColumns, IdentityRows, dense
from lrcore.layer import Linear, heads, output_heads
from lrcore.linalg import roots
from lrcore.methods import latentllm
from lrcore.methods.latentllm import hosvd, joint, mlp, sparse
from lrcore.methods.latentllm.junction import JUNCTIONS, PRECONDITIONERS
from lrcore.methods.svd_llm import TAPS
from lrcore.statistics import Moments

NAMES = ["q", "k", "v", "o", "gate", "up", "down"]
MHA, GQA = (3, 3, "none", False, True), (4, 2, "none", False, True)


def literal_preconditioner(name: str, second: torch.Tensor, absolute: torch.Tensor) -> torch.Tensor:
    """Table 1, as printed."""
    return {
        "identity": lambda: torch.eye(len(second), dtype=second.dtype),
        "diag_hessian": lambda: torch.diag(torch.linalg.inv(second).diagonal() ** -0.5),
        "diag_l1": lambda: torch.diag(absolute**0.5),
        "diag_l2": lambda: torch.diag(second.diagonal() ** 0.5),
        "covariance": lambda: second,
        "root_covariance": lambda: roots(second)[0],
    }[name]()


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS)
@pytest.mark.parametrize("name", NAMES)
def test_table_1_is_the_svd_of_the_preconditioned_weight(preconditioner, name):
    case = toy(*GQA)
    factors = latentllm.factor(case.layer, case.moments, attention="local", preconditioner=preconditioner, exponent=0.5)
    weight, second = case.layer.matrices()[name].weight, case.moments.second(TAPS[name])
    p = literal_preconditioner(preconditioner, second, case.moments.values[TAPS[name], "abs"])
    u, s, v = torch.linalg.svd(weight @ p, full_matrices=False)
    assert torch.allclose(factors[name].values, s, rtol=1e-6, atol=1e-6 * float(s[0]))
    for rank in (1, 4, 11):
        literal = u[:, :rank] * s[:rank] @ v[:rank] @ torch.linalg.inv(p)
        found = factors[name].truncate(case.layer, rank).matrices()[name].weight
        # the Hessian's inverse is damped by 1e-8, and squaring the covariance costs half of the digits of its small directions
        assert relative(((found - literal) @ roots(second)[0]).norm(), 0.0, (weight @ roots(second)[0]).norm()) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_root_covariance_has_the_error_of_cholesky_whitening_and_beats_the_others(name):
    case = toy(*GQA)
    weight, second = case.layer.matrices()[name].weight, case.moments.second(TAPS[name])
    lower = torch.linalg.cholesky(second)
    u, s, v = torch.linalg.svd(weight @ lower, full_matrices=False)

    def error(approximation):
        return float((((weight - approximation) @ lower) ** 2).sum())

    for rank in (2, 5, 9):
        cholesky = error(u[:, :rank] * s[:rank] @ v[:rank] @ torch.linalg.inv(lower))
        errors = {}
        for preconditioner in PRECONDITIONERS:
            factors = latentllm.factor(case.layer, case.moments, attention="local", preconditioner=preconditioner)
            errors[preconditioner] = error(factors[name].truncate(case.layer, rank).matrices()[name].weight)
        assert relative(errors["root_covariance"], cholesky) < 1e-9
        assert min(errors.values()) >= errors["root_covariance"] * (1 - 1e-9)


@pytest.mark.parametrize("attention", ["local", "split_head", "joint_qkv", "joint_qk"])
@pytest.mark.parametrize("kind", [(4, 2, "none", True, True), (4, 2, "rotary", True, True), MHA])
def test_no_junction_changes_anything_but_the_parameter_count(attention, kind):
    case = toy(*kind)
    for rank in (3, 7):
        layers = {}
        for junction in JUNCTIONS:
            factors = latentllm.factor(case.layer, case.moments, attention=attention, junction=junction)
            small = case.layer
            for factor in factors.values():
                small = factor.truncate(small, rank)
            layers[junction] = small
        first = layers["left"]
        for junction, small in layers.items():
            for name in set(NAMES) - (set("qk") if attention == "joint_qk" else set()):
                assert torch.allclose(small.matrices()[name].weight, first.matrices()[name].weight, atol=1e-9)
            for i in range(case.layer.attention.n_q):  # heads of q and k may be mapped by J_i: their scores may not
                assert torch.allclose(scores(small, case.x, i), scores(first, case.x, i), atol=1e-8)
            if attention == "local" and junction.endswith("identity"):
                for name in NAMES:
                    d_out, d_in = case.layer.matrices()[name].weight.shape
                    bias = d_out if case.layer.matrices()[name].bias is not None else 0
                    assert small.matrices()[name].parameters == rank * (d_in + d_out) - rank * rank + bias


def test_block_identities_are_where_they_should_be():
    case = toy(*GQA)
    right = latentllm.factor(case.layer, case.moments, attention="local")["up"].truncate(case.layer, 5).mlp.up
    left = latentllm.factor(case.layer, case.moments, attention="local", junction="left_identity")["up"].truncate(case.layer, 5).mlp.up
    assert isinstance(right.down, IdentityColumns)
    assert isinstance(left.up, IdentityRows)
    assert torch.equal(dense(right.down)[:, right.down.order[0, :5].long()], torch.eye(5, dtype=torch.float64))
    assert torch.equal(dense(left.up)[left.up.place[0].argsort()[:5]], torch.eye(5, dtype=torch.float64))
    assert right.down.rest.abs().max() < 50  # partial pivoting keeps the other columns tame
    split = latentllm.factor(case.layer, case.moments, attention="split_head")["q"].truncate(case.layer, 5).attention.q
    assert isinstance(split.up, BlockDiagonal)


@pytest.mark.parametrize("attention", ["local", "split_head", "joint_qkv"])
def test_bias_update_is_the_least_squares_optimum(attention):
    """eq. 43-49: among all rank-r maps with a free bias; brute force by centring the tokens."""
    case = toy(4, 2, "none", True, False)
    small = case.layer
    for factor in latentllm.factor(case.layer, case.moments, attention=attention, mlp="local").values():
        small = factor.truncate(small, 4)
    inputs = {"attn_in": case.x, "attn_out": case.a, "mlp_in": case.x, "mlp_hidden": case.z}
    for name, projection in small.matrices().items():
        x, old = inputs[TAPS[name]], case.layer.matrices()[name]
        gap = apply(old, x) - apply(projection, x)
        assert gap.mean(0).abs().max() < 1e-9  # eq. 45
        if attention == "local":
            centred = (x - x.mean(0)) @ old.weight.T
            best = float((torch.linalg.svdvals(centred)[4:] ** 2).sum())  # eq. 48: no rank-4 map of centred tokens does better
            assert relative(float((gap**2).sum()), best) < 1e-9


def test_a_projection_without_bias_keeps_none_and_has_the_uncentred_optimum_unless_one_is_added():
    case = toy(*GQA)
    kept = latentllm.factor(case.layer, case.moments, attention="local")["up"].truncate(case.layer, 4).mlp.up
    added = latentllm.factor(case.layer, case.moments, attention="local", bias="add")["up"].truncate(case.layer, 4).mlp.up
    dense_out = apply(case.layer.mlp.up, case.x)
    assert kept.bias is None
    assert relative(float(((dense_out - apply(kept, case.x)) ** 2).sum()), float((torch.linalg.svdvals(dense_out)[4:] ** 2).sum())) < 1e-9
    assert float(((dense_out - apply(added, case.x)) ** 2).sum()) < float(((dense_out - apply(kept, case.x)) ** 2).sum())


def test_joint_qkv_is_the_svd_of_the_stack_with_one_shared_a():
    """eq. 50."""
    case = toy(*GQA)
    small = latentllm.factor(case.layer, case.moments, attention="joint_qkv")["joint_qkv"].truncate(case.layer, 6)
    stack = torch.cat([case.layer.matrices()[name].weight for name in "qkv"])
    out = torch.cat([apply(small.matrices()[name], case.x) for name in "qkv"], 1)
    best = float((torch.linalg.svdvals(case.x @ stack.T)[6:] ** 2).sum())
    assert relative(float(((case.x @ stack.T - out) ** 2).sum()), best) < 1e-9
    assert small.attention.q.down is small.attention.k.down is small.attention.v.down
    saved = case.layer.parameters - small.parameters
    assert saved == stack.numel() - (6 * (D + len(stack)) - 36)  # r (3 d' + d - r), appendix C


def test_split_heads_are_each_their_own_svd():
    """eq. 53-54."""
    case = toy(*GQA)
    small = latentllm.factor(case.layer, case.moments, attention="split_head")["q"].truncate(case.layer, 3)
    for weight, found in zip(heads(case.layer.attention.q.weight, 4), heads(small.attention.q.weight, 4), strict=True):
        best = float((torch.linalg.svdvals(case.x @ weight.T)[3:] ** 2).sum())
        assert relative(float(((case.x @ (weight - found).T) ** 2).sum()), best) < 1e-9


# ---- joint QK ----------------------------------------------------------------------------------------------------------------------


def states(layer, x, name: str, index: int):
    a = layer.attention
    count = a.n_q if name == "q" else a.n_kv
    return apply(getattr(a, name), x).unflatten(-1, (count, -1))[:, index]


def scores(layer, x, i: int):
    """q_i . k over all pairs of tokens, before any rotation."""
    return states(layer, x, "q", i) @ states(layer, x, "k", i // layer.attention.group).T


def literal_algorithm_1(a, root, left_rank: int, right_rank: int, rounds: int = 8):
    """Algorithm 1 line by line on `d x d` matrices. Returns A_q, A_k and the list of losses."""
    g = [root @ wq.T @ heads(a.k.weight, a.n_kv)[i // a.group] @ root for i, wq in enumerate(heads(a.q.weight, a.n_q))]

    def top(m, rank):
        return torch.linalg.eigh(m)[1].flip(1)[:, :rank].T

    aq, losses = top(sum(m @ m.T for m in g), left_rank), []
    for _ in range(rounds):
        ak = top(sum(m.T @ aq.T @ aq @ m for m in g), right_rank)
        aq = top(sum(m @ ak.T @ ak @ m.T for m in g), left_rank)
        losses.append(float(sum(((m - aq.T @ aq @ m @ ak.T @ ak) ** 2).sum() for m in g)))
    return aq, ak, losses


@pytest.mark.parametrize("kind", [MHA, GQA])
@pytest.mark.parametrize("rank", [3, 8, 13])
def test_joint_qk_is_algorithm_1(kind, rank):
    case = toy(*kind)
    a = case.layer.attention
    factor = latentllm.factor(case.layer, case.moments)["joint_qk"]
    left_rank, right_rank = joint.side_ranks(rank, factor.pair.left.full, factor.pair.right.full)
    _, _, losses = literal_algorithm_1(a, roots(case.moments.second("attn_in"))[0], left_rank, right_rank)
    small = factor.truncate(case.layer, rank)
    error = sum(float(((scores(case.layer, case.x, i) - scores(small, case.x, i)) ** 2).mean()) for i in range(a.n_q))
    assert relative(error, losses[-1]) < 1e-6
    assert error <= factor.values[rank:].square().sum() * (1 + 1e-9)  # the bound of HOSVD


def test_parameters_with_all_junctions_are_those_of_section_4_1():
    case = toy(*MHA)
    small = latentllm.factor(case.layer, case.moments)["joint_qk"].truncate(case.layer, 13)
    r, n, size = 13, 3, 8
    expected = 2 * r * (D + size * n) - 2 * r * r - size * size * n
    assert small.attention.q.parameters + small.attention.k.parameters == expected


@pytest.mark.parametrize("kind", [(3, 3, "none", True, False), (4, 2, "none", True, True), (4, 2, "rotary", True, True)])
@pytest.mark.parametrize("junction", ["left", "right_identity"])
@pytest.mark.parametrize("rank", [4, 13])
def test_biases_take_part_in_the_score_error(kind, junction, rank):
    """eq. 96 by brute force over all pairs of tokens, against the loss of eq. 129-136."""
    case = toy(*kind)
    a = case.layer.attention
    factor = latentllm.factor(case.layer, case.moments, junction=junction, window=0)["joint_qk"]
    left, right = hosvd.alternate(factor.pair, *joint.side_ranks(rank, factor.pair.left.full, factor.pair.right.full))
    small = factor.truncate(case.layer, rank)
    error = sum(float(((scores(case.layer, case.x, i) - scores(small, case.x, i)) ** 2).mean()) for i in range(a.n_q))
    assert relative(error, hosvd.lost(factor.pair, left, right)) < 1e-6
    ignored = latentllm.factor(case.layer, case.moments, junction=junction, window=0, bias="keep")["joint_qk"].truncate(case.layer, rank)
    assert error < sum(float(((scores(case.layer, case.x, i) - scores(ignored, case.x, i)) ** 2).mean()) for i in range(a.n_q))


def test_biases_follow_the_printed_formula():
    """eq. 116 with J_i = I, `A C_0 A^T` not assumed orthonormal."""
    case = toy(3, 3, "none", True, False)
    small = latentllm.factor(case.layer, case.moments, junction="left")["joint_qk"].truncate(case.layer, 5)
    mu, c0 = case.moments.mean("attn_in"), case.moments.centred("attn_in")
    for name in "qk":
        old, new = case.layer.matrices()[name], small.matrices()[name]
        a = new.down
        printed = old.bias + old.weight @ mu - old.weight @ c0 @ a.T @ torch.linalg.pinv(a @ c0 @ a.T) @ a @ mu
        assert torch.allclose(new.bias, printed, atol=1e-8)


def test_rotary_offsets_turn_as_the_model_does():
    """`(R_m q) . (R_n k) = q . Theta_{n - m} k` (eq. 172-175)."""
    case = toy(4, 2, "rotary", False, True)
    a = case.layer.attention
    turns = joint.rotary_offsets(a.frequencies, a.qk_size, 6)
    q, k = (apply(p, case.x) for p in (a.q, a.k))
    rotated_q, rotated_k = rotated(q), rotated(k)
    for m, n in ((9, 9), (9, 8), (30, 24)):
        literal = (q[m, :8] @ turns[m - n] @ k[n, :8]).item()
        assert literal == pytest.approx((rotated_q[m, :8] @ rotated_k[n, :8]).item(), abs=1e-9)


@pytest.mark.parametrize("kind", [(3, 3, "rotary", False, True), (4, 2, "rotary", False, True)])
def test_the_window_sums_the_score_error_over_offsets(kind):
    """eq. 181, literally; and it beats the joint factorisation that is blind to the rotation in that sum."""
    case = toy(*kind)
    a, root, rank = case.layer.attention, roots(case.moments.second("attn_in"))[0], 6
    turns = joint.rotary_offsets(a.frequencies, a.qk_size, 5)

    def error(small):
        total = 0.0
        for i in range(a.n_q):
            wq, wk = (heads(p.weight, n)[j] for p, n, j in ((a.q, a.n_q, i), (a.k, a.n_kv, i // a.group)))
            b = small.attention
            vq, vk = (heads(p.weight, n)[j] for p, n, j in ((b.q, a.n_q, i), (b.k, a.n_kv, i // a.group)))
            total += sum(float(((root @ (wq.T @ turn @ wk - vq.T @ turn @ vk) @ root) ** 2).sum()) for turn in turns)
        return total

    factor = latentllm.factor(case.layer, case.moments, window=5)["joint_qk"]
    left, right = hosvd.alternate(factor.pair, *joint.side_ranks(rank, factor.pair.left.full, factor.pair.right.full))
    found = error(factor.truncate(case.layer, rank))
    assert relative(found, hosvd.lost(factor.pair, left, right)) < 1e-6
    assert found < error(latentllm.factor(case.layer, case.moments, window=0)["joint_qk"].truncate(case.layer, rank))


@pytest.mark.parametrize("kind", [MHA, GQA, (4, 2, "none", True, True), (4, 2, "rotary", True, True), (3, 3, "rotary", False, True)])
@pytest.mark.parametrize("name", ["joint_qk", "joint_vo"])
@pytest.mark.parametrize("rank", [2, 7, 15])
def test_the_loss_never_rises_over_the_rounds(kind, name, rank):
    p = latentllm.factor(*(lambda case: (case.layer, case.moments))(toy(*kind)), vo="joint")[name].pair
    ranks = joint.side_ranks(rank, p.left.full, p.right.full)
    losses = [hosvd.lost(p, *hosvd.alternate(p, *ranks, rounds)) for rounds in range(1, 9)]
    scale = float(p.left_values.sum())
    assert all(later <= earlier + 1e-12 * scale for earlier, later in pairwise(losses))
    assert losses[0] <= float(p.left_values[ranks[0] :].sum() + p.right_values[ranks[1] :].sum()) + 1e-12 * scale


# ---- joint VO ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MHA, GQA])
@pytest.mark.parametrize("rank", [4, 13])
def test_joint_vo_is_the_printed_alternation(kind, rank):
    """eq. 184-188 on `d x d` matrices, the loss summed over heads."""
    case = toy(*kind)
    a, root = case.layer.attention, roots(case.moments.second("attn_in"))[0]
    g = [wo @ heads(a.v.weight, a.n_kv)[i // a.group] @ root for i, wo in enumerate(output_heads(a.o.weight, a.n_q))]
    factor = latentllm.factor(case.layer, case.moments, vo="joint")["joint_vo"]
    left_rank, right_rank = joint.side_ranks(rank, factor.pair.left.full, factor.pair.right.full)

    def top(m, r):
        return torch.linalg.eigh(m)[1].flip(1)[:, :r]

    bo = top(sum(m @ m.T for m in g), left_rank)
    for _ in range(8):
        av = top(sum(m.T @ bo @ bo.T @ m for m in g), right_rank)
        bo = top(sum(m @ av @ av.T @ m.T for m in g), left_rank)
    expected = float(sum(((m - bo @ bo.T @ m @ av @ av.T) ** 2).sum() for m in g))
    b = factor.truncate(case.layer, rank).attention
    small = [wo @ heads(b.v.weight, a.n_kv)[i // a.group] @ root for i, wo in enumerate(output_heads(b.o.weight, a.n_q))]
    assert relative(float(sum(((m - s) ** 2).sum() for m, s in zip(g, small, strict=True))), expected) < 1e-6


@pytest.mark.parametrize("kind", [(3, 3, "none", True, False), (4, 2, "rotary", True, True)])
def test_joint_vo_keeps_the_mean_of_the_output(kind):
    """eq. 193: with attention weights that sum to one, the gap of the output has no mean where every head sees the mean token."""
    case = toy(*kind)
    small = latentllm.factor(case.layer, case.moments, vo="joint")["joint_vo"].truncate(case.layer, 5)
    mean = case.moments.mean("attn_in").unsqueeze(0)

    def out(layer):
        a = layer.attention
        return apply(a.o, apply(a.v, mean).unflatten(1, (a.n_kv, -1)).repeat_interleave(a.group, 1).flatten(1))

    assert small.attention.v.bias is None
    assert torch.allclose(out(small), out(case.layer), atol=1e-9)


# ---- ill-conditioned layers --------------------------------------------------------------------------------------------------------


def spoiled(kind: tuple, how: str):
    """A toy layer with something degenerate in it, and moments to match."""
    case = toy(*kind, tokens=10) if how == "few tokens" else toy(*kind)
    layer, x, a, z = case.layer, case.x, case.a, case.z

    def changed(name, edit):
        old = layer.matrices()[name]
        weight = old.weight.clone()
        edit(weight)
        return layer.with_matrices(**{name: Linear(weight, old.bias)})

    if how == "dead neuron":
        z = z.clone()
        z[:, 3] = 0
    if how == "zero head":
        layer = changed("k", lambda w: w[:8].zero_())
        layer = replace(layer, attention=replace(layer.attention, v=changed("v", lambda w: w[:8].zero_()).attention.v))
    if how == "duplicated row":
        layer = changed("up", lambda w: w[5].copy_(w[4]))
        layer = replace(layer, attention=replace(layer.attention, q=changed("q", lambda w: w[5].copy_(w[4])).attention.q))
    if how == "constant activation":
        x = x.clone()
        x[:, 2] = 1.5
    from toy_layer import moments_of

    return replace(case, layer=layer, moments=moments_of(layer, x, a, z), x=x, a=a, z=z)


@pytest.mark.parametrize("how", ["few tokens", "dead neuron", "zero head", "duplicated row", "constant activation"])
@pytest.mark.parametrize("options", [{}, {"attention": "local", "junction": "symmetric"}, {"attention": "split_head", "vo": "joint"}])
@pytest.mark.parametrize("kind", [(3, 3, "none", True, False), (4, 2, "rotary", False, True)])
def test_degenerate_layers_keep_to_the_pseudo_inverse_answer(how, options, kind):
    case = spoiled(kind, how)
    factors = latentllm.factor(case.layer, case.moments, **options)
    inputs = {"attn_in": case.x, "attn_out": case.a, "mlp_in": case.x, "mlp_hidden": case.z}
    for name, factor in factors.items():
        assert torch.isfinite(factor.values).all()
        for rank in {1, factor.cost.full // 2, factor.cost.full - 1} - {0}:
            small = factor.truncate(case.layer, rank)
            for projection in small.matrices().values():
                assert torch.isfinite(projection.weight).all()
                assert projection.bias is None or torch.isfinite(projection.bias).all()
            if name not in NAMES or (name in "qkv" and "split_head" in options.values()):
                continue
            x, old = inputs[TAPS[name]], case.layer.matrices()[name]
            centred = x - x.mean(0) if old.bias is not None else x
            best = float((torch.linalg.svdvals(centred @ old.weight.T)[rank:] ** 2).sum())
            gap = apply(old, x) - apply(small.matrices()[name], x)
            assert abs(float((gap**2).sum()) - best) < 1e-6 * float((apply(old, x) ** 2).sum())


@pytest.mark.parametrize("how", ["few tokens", "zero head", "duplicated row", "constant activation"])
@pytest.mark.parametrize("kind", [MHA, GQA])
def test_degenerate_heads_keep_to_algorithm_1(how, kind):
    """The printed algorithm takes no inverse before its last line, so it is its own pseudo-inverse answer."""
    case = spoiled(kind, how)
    a = case.layer.attention
    factor = latentllm.factor(case.layer, case.moments)["joint_qk"]
    total = sum(float((scores(case.layer, case.x, i) ** 2).mean()) for i in range(a.n_q))
    for rank in (2, 7, 9):
        ranks = joint.side_ranks(rank, factor.pair.left.full, factor.pair.right.full)
        _, _, losses = literal_algorithm_1(a, roots(case.moments.second("attn_in"))[0], *ranks)
        small = factor.truncate(case.layer, rank)
        error = sum(float(((scores(case.layer, case.x, i) - scores(small, case.x, i)) ** 2).mean()) for i in range(a.n_q))
        assert abs(error - losses[-1]) < 1e-6 * total


def test_nothing_seen_at_all_is_no_accident():
    case = toy(*GQA)
    zero = Moments({need: value * 0 for need, value in case.moments.values.items()}, case.moments.tokens)
    small = case.layer
    for factor in latentllm.factor(case.layer, zero, vo="joint").values():
        small = factor.truncate(small, 3)
    assert all(torch.isfinite(p.weight).all() for p in small.matrices().values())


# ---- joint UD ----------------------------------------------------------------------------------------------------------------------

PLAIN = [(3, 3, "none", True, False), (3, 3, "none", False, False)]


def ud(kind: tuple):
    case = toy(*kind)
    factor = latentllm.factor(case.layer, case.moments, mlp="joint")["joint_ud"]
    x = case.moments.values["mlp_in", "sample"]
    assert torch.equal(x, case.x)  # fewer tokens than the sample may hold: all of them
    return case, factor, x


def decoupled_loss(up, down, dense_up, dense_down, x, z, a, y) -> float:
    """eq. 20 per token, and the prior of the two fits."""
    loss = ((up(x) - z) ** 2).sum() + ((a - torch.relu(z)) ** 2).sum() + ((down(a) - y) ** 2).sum()
    for found, dense_ in ((up, dense_up), (down, dense_down)):
        gap = found.up @ found.down - dense_.weight
        loss = loss + len(x) * mlp.PRIOR * (gap @ dense_.second * gap).sum()
    return float(loss) / len(x)


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("rank", [2, 7, 15])
def test_every_step_of_joint_ud_lowers_the_decoupled_loss(kind, rank):
    case, factor, x = ud(kind)
    up, down = factor.up, factor.down
    z = apply(case.layer.mlp.up, x)
    a = torch.relu(z)
    y = apply(case.layer.mlp.down, a)
    small_up, small_down = mlp.fit(up, x, z, rank), mlp.fit(down, a, y, rank)
    losses = [decoupled_loss(small_up, small_down, up, down, x, z, a, y)]
    for _ in range(4):
        a = mlp.best_hidden(small_down, z, y)
        losses.append(decoupled_loss(small_up, small_down, up, down, x, z, a, y))
        z = mlp.best_preactivation(small_up(x), a)
        losses.append(decoupled_loss(small_up, small_down, up, down, x, z, a, y))
        small_up, small_down = mlp.fit(up, x, z, rank), mlp.fit(down, a, y, rank)
        losses.append(decoupled_loss(small_up, small_down, up, down, x, z, a, y))
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(losses))
    assert losses[-1] < 0.95 * losses[0]
    last = mlp.alternate(up, down, x, rank)
    assert torch.allclose(last[0].up @ last[0].down, small_up.up @ small_up.down, atol=1e-9)
    assert torch.allclose(last[1].up @ last[1].down, small_down.up @ small_down.down, atol=1e-9)


def test_hidden_and_preactivation_are_the_printed_closed_forms():
    """eq. 21 with the `d_f x d_f` inverse; eq. 22 against a fine grid."""
    case, factor, x = ud(PLAIN[0])
    z = apply(case.layer.mlp.up, x)
    y = apply(case.layer.mlp.down, torch.relu(z))
    down = mlp.fit(factor.down, torch.relu(z), y, 5)
    w = down.up @ down.down
    printed = torch.linalg.solve(w.T @ w + torch.eye(len(w.T)), (torch.relu(z) + (y - down.bias) @ w).T).T
    assert torch.allclose(mlp.best_hidden(down, z, y), printed, atol=1e-10)
    linear, a = torch.meshgrid(torch.linspace(-2, 2, 21), torch.linspace(-2, 2, 21), indexing="ij")
    grid = torch.linspace(-4, 4, 8001)

    def loss(value):
        return (value - linear.unsqueeze(-1)) ** 2 + (a.unsqueeze(-1) - torch.relu(value)) ** 2

    best = loss(grid).min(-1).values
    assert torch.allclose(loss(mlp.best_preactivation(linear, a).unsqueeze(-1)).squeeze(-1), best, atol=1e-5)


@pytest.mark.parametrize("kind", PLAIN)
def test_before_the_first_round_joint_ud_is_the_local_solution(kind):
    case, factor, x = ud(kind)
    up, down = mlp.alternate(factor.up, factor.down, x, 6, rounds=0)
    local = latentllm.factor(case.layer, case.moments, mlp="local")
    small = local["down"].truncate(local["up"].truncate(case.layer, 6), 6)
    assert torch.allclose(up.up @ up.down, small.mlp.up.weight, atol=1e-8)
    assert torch.allclose(down.up @ down.down, small.mlp.down.weight, atol=1e-8)
    left = (local["up"].values[6:] ** 2).sum() + (local["down"].values[6:] ** 2).sum()
    assert float((factor.values[6:] ** 2).sum()) == pytest.approx(float(left))


def test_joint_ud_beats_the_local_solution_in_the_output_of_the_mlp():
    wins = 0
    for seed in range(6):
        case = toy(*PLAIN[0], seed=seed)
        errors = {}
        for how in ("joint", "local"):
            small = case.layer
            for name, factor in latentllm.factor(case.layer, case.moments, mlp=how).items():
                small = factor.truncate(small, 10) if name in ("joint_ud", "up", "down") else small
            gap = case.z @ case.layer.mlp.down.weight.T + case.layer.mlp.down.bias
            gap = gap - apply(small.mlp.down, torch.relu(apply(small.mlp.up, case.x)))
            errors[how] = float((gap**2).sum())
        wins += errors["joint"] < errors["local"]
    assert wins >= 5


@pytest.mark.parametrize("kind", [MHA, (3, 3, "none", False, False)])
def test_an_mlp_that_is_gated_or_not_relu_is_factored_matrix_by_matrix(kind):
    case = toy(*kind)
    layer = replace(case.layer, mlp=replace(case.layer.mlp, activation="gelu"))
    assert set(latentllm.factor(layer, case.moments, mlp="joint")) >= {"up", "down"}


def test_few_tokens_leave_the_fit_unique_and_finite():
    case = toy(*PLAIN[0], tokens=10)
    small = latentllm.factor(case.layer, case.moments, mlp="joint")["joint_ud"].truncate(case.layer, 12).mlp
    out = apply(small.down, torch.relu(apply(small.up, case.x)))
    assert torch.isfinite(small.up.weight).all()
    assert torch.isfinite(small.down.weight).all()
    assert float((out - case.z @ case.layer.mlp.down.weight.T - case.layer.mlp.down.bias).abs().max()) < 1e-3


# ---- appendix I --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v", "up", "down"])
@pytest.mark.parametrize("metric", [True, False])
def test_low_rank_plus_sparse_never_loses_over_the_rounds(name, metric):
    """eq. 231-237: the loss of every round against the one before it, and against no sparse term at all."""
    case = toy(*GQA)
    weight, second = case.layer.matrices()[name].weight, case.moments.second(TAPS[name]) if metric else None
    root = torch.eye(weight.shape[1], dtype=weight.dtype) if second is None else roots(second)[0]
    losses = []
    for rounds in range(7):
        up, _, down, rest = sparse.alternate(weight, second, 5, 40, rounds)
        assert int((rest != 0).sum()) <= 40
        losses.append(float((((weight - up @ down - rest) @ root) ** 2).sum()))
    alone = float((torch.linalg.svdvals(weight @ root)[5:] ** 2).sum())
    assert losses[0] == pytest.approx(alone)
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(losses))
    assert losses[-1] < 0.95 * alone


def test_a_sparse_term_that_is_there_is_found():
    g = torch.Generator().manual_seed(5)
    low = torch.randn(60, 3, generator=g, dtype=torch.float64) @ torch.randn(3, 50, generator=g, dtype=torch.float64)
    places = torch.randperm(3000, generator=g)[:20]
    planted = torch.zeros(3000, dtype=torch.float64).index_fill(0, places, 3.0).view(60, 50)
    up, _, down, rest = sparse.alternate(low + planted, None, 3, 20, rounds=60)
    assert torch.equal(rest != 0, planted != 0)
    assert torch.allclose(up @ down + rest, low + planted, atol=1e-3)


def test_the_sparse_term_is_stored_as_values_and_places_and_both_are_counted():
    case = toy(*PLAIN[0])
    small = latentllm.factor(case.layer, case.moments, sparse=0.1)["up"].truncate(case.layer, 5).mlp.up
    entries = round(0.1 * 40 * D)
    assert small.sparse.values.numel() == small.sparse.index.numel() == entries
    assert small.parameters == 5 * (40 + D) - 25 + 2 * entries + 40
    assert abs(float((apply(case.layer.mlp.up, case.x) - apply(small, case.x)).mean())) < 1e-9  # eq. 45 with D


def test_codes_leave_everything_but_the_numbers_alone():
    case = toy(*GQA)
    plain, coded = (latentllm.factor(case.layer, case.moments, bits=bits, chunk=16) for bits in (0, 8))
    for name, factor in plain.items():
        assert torch.equal(factor.values, coded[name].values)
        assert factor.cost.ranks() == coded[name].cost.ranks()
        a, b = factor.truncate(case.layer, 6), coded[name].truncate(case.layer, 6)
        assert a.parameters == b.parameters
        for matrix in a.matrices():
            x, y = a.matrices()[matrix].weight, b.matrices()[matrix].weight
            assert float((x - y).norm() / x.norm()) < 0.02
