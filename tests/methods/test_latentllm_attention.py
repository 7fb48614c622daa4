"""LatentLLM's joint VO on attention-weighted inputs (eq. 198-223).

The solver is compared with errors on tokens and with the explicit Kronecker system.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from latentllm_reference import GQA, MHA
from test_latentllm_degenerate import spoiled
from toy_layer import apply, relative, toy

from lrcore.layers.layer import heads, output_heads
from lrcore.layers.linalg import roots
from lrcore.layers.statistics import Moments
from lrcore.methods import latentllm
from lrcore.methods.latentllm import attention_solver

KINDS = [MHA, GQA, (3, 3, "none", True, False), (4, 2, "rotary", True, True)]


def output(case, layer) -> torch.Tensor:
    """Return the attention output [N, d] on the tokens, with the attention weights of the dense
    heads.
    """
    a = layer.attention
    values = apply(a.v, case.x).unflatten(-1, (a.n_kv, -1))
    return apply(
        a.o, torch.cat([case.mixtures[i] @ values[:, i // a.group] for i in range(a.n_q)], 1)
    )


def error(case, small) -> float:
    return float(((output(case, case.layer) - output(case, small)) ** 2).sum(1).mean())


def problem_and_start(kind: tuple, rank: int, **options):
    case = toy(*kind)
    factor = latentllm.factor(
        case.layer, case.moments, latentllm.LatentLLMOptions(vo="attention", **options)
    )["joint_vo"]
    return case, factor, factor.problem, factor.start(case.layer, rank)


def turns(problem, result, rounds: int = 4):
    """Yield the start and the solution after each step of each round."""
    yield result
    for _ in range(rounds):
        for turn in (attention_solver.fit_out, attention_solver.fit_up, attention_solver.fit_down):
            result = turn(problem, result)
            yield result


@pytest.mark.one_in(3, each="bias")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", ["update", "add", "keep"])
@pytest.mark.parametrize("rank", [4, 13])
def test_loss_is_the_error_of_the_output_and_below_joint_vo(kind, bias, rank):
    """eq. 206 by brute force over tokens, with biases (eq. 193 with attention-weighted means)."""
    case, factor, problem, start = problem_and_start(kind, rank, bias=bias)
    result = attention_solver.alternate(problem, start)
    ours = error(case, factor.truncate(case.layer, rank))
    assert relative(ours, attention_solver.loss(problem, result)) < 1e-6
    joint = latentllm.factor(
        case.layer, case.moments, latentllm.LatentLLMOptions(vo="joint", bias=bias)
    )["joint_vo"].truncate(case.layer, rank)
    assert ours < 0.99 * error(case, joint)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [2, 7, 15, 20])
def test_loss_never_rises_between_steps(kind, rank):
    _, _, problem, start = problem_and_start(kind, rank)
    losses = [attention_solver.loss(problem, result) for result in turns(problem, start)]
    scale = attention_solver.loss(problem, replace(start, out=start.out * 0))
    assert all(later <= earlier + 1e-11 * scale for earlier, later in pairwise(losses))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", ["update", "keep"])
def test_fit_down_solves_the_kronecker_system(kind, bias):
    """eq. 222 with an explicit matrix for all r_v k numbers."""
    _, _, problem, start = problem_and_start(kind, 3, bias=bias)
    result = attention_solver.fit_out(problem, start)
    k, n_q = problem.width, problem.width * problem.group // problem.shift.shape[1]
    moment, n = problem.second, n_q * k
    h = (output_heads(result.out, n_q) @ problem.by_head(result.up)).unbind(
        0
    )  # H_i, B_o included: [d, r]
    system = sum(
        torch.kron(h[i].mT @ h[j], moment[i * k : (i + 1) * k, j * k : (j + 1) * k])
        for i in range(n_q)
        for j in range(n_q)
    )  # on alpha in row-major order
    target = (
        problem.weight @ problem.rows(problem.dense())
        - result.out @ problem.by_head(problem.shift).reshape(-1, 1) * moment[-1]
    )
    right = sum(h[i].mT @ target[:, :n][:, i * k : (i + 1) * k] for i in range(n_q))
    alpha = torch.linalg.lstsq(system, right.reshape(-1, 1), driver="gelsd").solution.view_as(
        result.down
    )
    best = attention_solver.loss(problem, replace(result, down=alpha))
    assert attention_solver.loss(
        problem, attention_solver.fit_down(problem, result, steps=500)
    ) == pytest.approx(best, rel=1e-7)
    assert attention_solver.loss(problem, attention_solver.fit_down(problem, result)) < 1.01 * best


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [3, 11])
def test_fit_up_is_the_least_squares_solution(kind, rank):
    """eq. 216 for all heads, by the quadratic form of the loss."""
    _, _, problem, start = problem_and_start(kind, rank)
    result = attention_solver.fit_out(problem, start)
    flat = result.up.flatten().clone().requires_grad_()

    def loss(up: torch.Tensor) -> torch.Tensor:
        states = (
            problem.rows(up.view_as(result.up) @ result.down),
            up.view_as(result.up) @ result.down,
        )
        cross = result.out * (problem.weight @ problem.gram(states[0], problem.dense()).mT)
        return (result.out @ problem.gram(*states) * result.out).sum() - 2 * cross.sum()

    gradient = torch.autograd.functional.jacobian(loss, flat)
    curvature = torch.autograd.functional.hessian(loss, flat)
    step = torch.linalg.lstsq(curvature, -gradient.unsqueeze(1), driver="gelsd").solution
    best = attention_solver.loss(problem, replace(result, up=result.up + step.view_as(result.up)))
    assert attention_solver.loss(
        problem, attention_solver.fit_up(problem, result, steps=500)
    ) == pytest.approx(best, rel=1e-7)


@pytest.mark.parametrize("kind", [MHA, GQA])
def test_fit_out_is_reduced_rank_regression_and_beats_the_fixed_basis_of_the_paper(kind):
    """eq. 219-220 give A_o for a fixed B_o from `W_o C_o^{1/2}`; the code solves for both."""
    case, _, problem, start = problem_and_start(kind, 7)
    a, rank = case.layer.attention, start.basis.shape[1]
    values = apply(a.v, case.x).unflatten(-1, (a.n_kv, -1))
    small = torch.einsum("nk,gsk->ngs", values.flatten(1), start.maps)
    target, states = (
        torch.cat([case.mixtures[i] @ v[:, i // a.group] for i in range(a.n_q)], 1)
        for v in (values, small)
    )
    target = target @ a.o.weight.T

    def best(basis: torch.Tensor | None) -> float:
        fit = states @ torch.linalg.lstsq(states, target, driver="gelsd").solution
        basis = torch.linalg.svd(fit, full_matrices=False)[2][:rank].T if basis is None else basis
        return float(((target - fit @ basis @ basis.T) ** 2).sum(1).mean())

    ours = attention_solver.loss(problem, attention_solver.fit_out(problem, start))
    assert relative(ours, best(None)) < 1e-6
    root = roots(case.moments.second("attn_out"))[0]
    assert ours < best(torch.linalg.svd(a.o.weight @ root)[0][:, :rank])


@pytest.mark.one_in(2, each="junction")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("junction", ["left", "left_identity", "right_identity"])
def test_junctions_keep_the_outputs_and_cost_the_same_as_for_joint_vo(kind, junction):
    case = toy(*kind)
    plain, stored = (
        latentllm.factor(
            case.layer, case.moments, latentllm.LatentLLMOptions(vo="attention", junction=j)
        )["joint_vo"]
        for j in ("symmetric", junction)
    )
    joint = latentllm.factor(
        case.layer, case.moments, latentllm.LatentLLMOptions(vo="joint", junction=junction)
    )["joint_vo"].truncate(case.layer, 9)
    small = stored.truncate(case.layer, 9)
    assert torch.allclose(
        output(case, small), output(case, plain.truncate(case.layer, 9)), atol=1e-8
    )
    assert small.parameters == joint.parameters


def test_moments_predicted_from_head_outputs_underestimate_the_error():
    """This is why x' is measured: by eq. 205 each head has only its row space of W_v, so any r_v >=
    d_h would seem lossless.
    """
    case, _, _, start = problem_and_start(MHA, 13)
    a = case.layer.attention
    seen = [
        start.down @ a.v.weight @ torch.linalg.pinv(w) for w in heads(a.v.weight, a.n_kv)
    ]  # A_v W_v,i^+ [r_v, d_h]
    up = torch.stack([torch.linalg.pinv(m) for m in seen])
    assert torch.allclose(
        up @ torch.stack(seen),
        torch.eye(a.v_size, dtype=up.dtype).expand(a.n_kv, -1, -1),
        atol=1e-9,
    )  # T_i = I
    weight = (up @ start.down @ a.v.weight).flatten(0, 1)
    small = case.layer.with_matrices(v=replace(a.v, weight=weight))
    joint = latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(vo="joint"))[
        "joint_vo"
    ].truncate(case.layer, 13)
    assert error(case, small) > 2 * error(case, joint)


def solved(case, moments: Moments, vo: str, rank: int):
    return latentllm.factor(case.layer, moments, latentllm.LatentLLMOptions(vo=vo))[
        "joint_vo"
    ].truncate(case.layer, rank)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", ["few tokens", "zero head", "constant activation"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 7, 23])
def test_degenerate_layers_are_no_worse_than_with_joint_vo(how, kind, rank):
    case = spoiled(kind, how)
    ours, joint = (
        latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(vo=vo))[
            "joint_vo"
        ].truncate(case.layer, rank)
        for vo in ("attention", "joint")
    )
    total = float((output(case, case.layer) ** 2).sum(1).mean())
    assert error(case, ours) <= error(case, joint) + 1e-6 * total


@pytest.mark.parametrize("kind", KINDS)
def test_slightly_indefinite_moments_do_not_increase_the_error(kind):
    """Products in the dtype of the model leave negative eigenvalues, along which the loss has no
    lower bound.
    """
    case = toy(*kind, tokens=60)
    noise = torch.randn(
        case.moments.second("weighted_values").shape,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    noise = 1e-5 * (noise + noise.mT)
    assert torch.linalg.eigvalsh(case.moments.centered("weighted_values") + noise)[0] < -1e-5
    rough = Moments(
        {
            **case.moments.values,
            ("weighted_values", "second"): case.moments.second("weighted_values") + noise,
        },
        case.moments.tokens,
    )
    for rank in (4, 13, 22):
        exact, result = (
            latentllm.factor(case.layer, m, latentllm.LatentLLMOptions(vo="attention"))[
                "joint_vo"
            ].truncate(case.layer, rank)
            for m in (case.moments, rough)
        )
        total = float((output(case, case.layer) ** 2).sum(1).mean())
        assert error(case, result) < error(case, exact) + 1e-3 * total
