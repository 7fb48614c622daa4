"""Objectives of all methods with 60 digits, from the equations of their papers: an objective by
slot for a layer and the options of a method.
"""

from collections.abc import Callable
from typing import Any

import mpmath
from exact_algorithm_1 import joint_scores, joint_values
from exact_heads import a3, clover, modegpt
from exact_latents import care, measured_latent, mha2mla, transmla
from exact_objectives import (
    Exact,
    Matrix,
    Objective,
    matrices,
    narrowed_refit,
    read_by,
    scores,
)
from exact_scores import (
    diagonal,
    names_of,
)
from exact_structures import flap, llm_pruner, llm_surgeon
from sixty_digits import (
    exact,
    trace,
)

from lrcore.layers.statistics import SAMPLED_CURVATURE, TAPS, TEXT_CURVATURE

Reference = Callable[[Exact, Any], dict[str, Objective]]


def svd(e: Exact, options: Any) -> dict[str, Objective]:
    def metric(name: str) -> Matrix | None:
        if options.weights == "equal":
            return None
        return mpmath.diag(exact(e.case.moments.values[name, "fisher"]))

    return {name: matrices(e, (name,), metric(name)) for name in names_of(e)}


def svd_llm(e: Exact, options: Any) -> dict[str, Objective]:
    def outputs(name: str) -> Matrix | None:
        if options.outputs == "none":
            return None
        r = exact(e.case.moments.values[name, SAMPLED_CURVATURE])
        return r + options.damping * trace(r) / r.rows * mpmath.eye(r.rows)

    return {
        name: matrices(e, (name,), e.second(TAPS[name]), outputs=outputs(name))
        for name in names_of(e)
    }


def kfac_svd(e: Exact, options: Any) -> dict[str, Objective]:
    def shrunk(m: Matrix, alpha: float) -> Matrix:
        return (1 - alpha) * m + alpha * trace(m) / m.rows * mpmath.eye(m.rows)

    return {
        name: matrices(
            e,
            (name,),
            shrunk(e.second(TAPS[name]), options.input_shrinkage),
            outputs=shrunk(
                exact(e.case.moments.values[name, TEXT_CURVATURE]), options.output_shrinkage
            ),
        )
        for name in names_of(e)
    }


def compot(e: Exact, options: Any) -> dict[str, Objective]:
    return {}  # an alternation, see test_compot.py


def aa_svd(e: Exact, options: Any) -> dict[str, Objective]:
    """Return the objective of `W + anchor W E[(x - x') x'^T] (E[x' x'^T] + ridge)^-1` and its best
    approximation on x'.
    """

    def target(name: str) -> Matrix:
        second = e.second(TAPS[name])
        apart = exact(e.case.moments.cross(TAPS[name])) - second
        ridge = options.ridge * trace(second) / second.rows
        inverse = mpmath.inverse(second + ridge * mpmath.eye(second.rows))
        return e.weight(name) * (mpmath.eye(second.rows) + options.anchor * apart * inverse)

    solved = {}
    for name in names_of(e):
        anchored, exact_case = target(name), Exact(e.case)
        exact_case._made = {**e._made, name: anchored}
        solved[name] = matrices(exact_case, (name,), e.second(TAPS[name]))
    return solved


def bolaco(e: Exact, options: Any) -> dict[str, Objective]:
    """Return the objective of principal components of the centered outputs."""
    return {
        name: matrices(e, (name,), e.covariance(TAPS[name]), e.mean(TAPS[name]))
        for name in names_of(e)
        if name != "v"
    }


def metric(e: Exact, tap: str, centered: bool, options: Any) -> Matrix | None:
    """Return `P^2` of table 1."""
    second = e.covariance(tap) if centered else e.second(tap)
    size, kind = second.rows, options.preconditioner
    if kind == "identity":
        return None
    if kind == "diag_l1":
        x = e.seen(tap)
        means = [mpmath.fsum(abs(v) for v in x[:, j]) / x.rows for j in range(size)]
        return mpmath.diag([value ** (2 * options.exponent) for value in means])
    if kind == "diag_l2":
        return mpmath.diag(diagonal(second))
    if kind == "diag_hessian":
        ridge = max(options.damping, 1e-8) * trace(second) / size
        inverse = mpmath.inverse(second + ridge * mpmath.eye(size))
        return mpmath.diag([1 / inverse[j, j] for j in range(size)])
    return second if kind == "root_covariance" else second * second


def latentllm(e: Exact, options: Any) -> dict[str, Objective]:
    layer, solved = e.layer, {}

    def centered(*names: str) -> bool:
        biased = all(layer.matrices()[name].bias is not None for name in names)
        return options.bias == "add" or (options.bias == "update" and biased)

    def alone(*names: str) -> Objective:
        tap, away = TAPS[names[0]], centered(*names)
        return matrices(e, names, metric(e, tap, away, options), e.mean(tap) if away else None)

    if options.sparse or options.bits:
        return {}  # see test_exact_alternations.py and test_exact_quantisers.py
    if options.attention == "joint_qkv":
        solved["joint_qkv"] = alone("q", "k", "v")
    elif options.attention == "local":
        solved |= {name: alone(name) for name in "qk"}
    elif options.attention == "joint_qk":
        away = centered("q", "k")
        solved["joint_qk"] = joint_scores(
            e, metric(e, "attn_in", away, options), away, options.window
        )
    if options.vo == "split":
        solved["o"] = alone("o")
        if options.attention in ("local", "joint_qk"):
            solved["v"] = alone("v")
    elif options.vo == "joint" and options.attention != "joint_qkv":
        away = options.bias == "add" or (
            options.bias == "update" and layer.attention.o.bias is not None
        )
        solved["joint_vo"] = joint_values(e, metric(e, "attn_in", away, options), away)
    if options.mlp == "local":
        solved |= {n: alone(n) for n in ("gate", "up", "down") if n in layer.matrices()}
    return solved


def fused(e: Exact, options: Any) -> dict[str, Objective]:
    rotary = e.layer.attention.position == "rotary"
    solved = {
        "qk": modegpt(e, None)["qk"] if rotary else scores(e, centered=True),
        "ov": narrowed_refit(e),
    }
    if options.forms == "latents":
        return solved | {f"latent_{name}": measured_latent(e, name) for name in "kv"}
    solved["mlp"] = read_by(
        e,
        "down",
        lambda factor, rank: factor.order[:rank].tolist(),
        centered=True,
        groups=[[j] for j in range(e.weight("down").cols)],
    )
    if options.forms == "narrowed":
        return solved
    for name in names_of(e)[2:]:
        solved[name] = matrices(e, (name,), e.covariance(TAPS[name]), e.mean(TAPS[name]))
    return (
        solved | {"joint_qk": joint_scores(e, e.covariance("attn_in"), True, 5)}
        if not (rotary or e.group > 1)
        else solved
    )


REFERENCES: dict[str, Reference] = {
    f.__name__: f
    for f in (
        svd,
        svd_llm,
        kfac_svd,
        aa_svd,
        bolaco,
        compot,
        a3,
        clover,
        modegpt,
        latentllm,
        care,
        mha2mla,
        transmla,
        fused,
        flap,
        llm_pruner,
        llm_surgeon,
    )
}
