"""Distillation loss of healing, and steps and resumption of its optimizer."""

import math

import pytest
import torch
from torch import nn

from lrcore.compression.steps.healing.distillation import Descent, learning_rate_share, terms
from lrcore.system.errors import Cancelled, InputError


def by_hand(student, teacher, targets, temperature):
    """Compute eq. 6 and 7 of CARE, token by token."""
    entropy = divergence = 0.0
    for z, t, target in zip(student.tolist(), teacher.tolist(), targets.tolist(), strict=True):
        entropy -= math.log(math.exp(z[target]) / sum(map(math.exp, z)))
        p = [math.exp(x / temperature) for x in t]
        q = [math.exp(x / temperature) for x in z]
        divergence += sum(
            a / sum(p) * math.log((a / sum(p)) / (b / sum(q))) for a, b in zip(p, q, strict=True)
        )
    return entropy / len(targets), divergence / len(targets)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_loss_terms_and_gradients_follow_the_paper(temperature) -> None:
    student, teacher = (
        torch.randn(2, 5, 7).double().requires_grad_(True),
        torch.randn(2, 5, 7).double() * 2,
    )
    targets, beta = torch.randint(7, (2, 5)), 0.7
    entropy, divergence = terms(student, teacher, targets, temperature)
    expected = by_hand(student.flatten(0, 1), teacher.flatten(0, 1), targets.flatten(), temperature)
    assert (entropy.item(), divergence.item()) == pytest.approx(expected, rel=1e-12)
    (entropy + beta * temperature**2 * divergence).backward()
    chosen = torch.nn.functional.one_hot(targets, 7)
    soft_slope = (student / temperature).softmax(-1) - (teacher / temperature).softmax(-1)
    by_rule = (student.softmax(-1) - chosen + beta * temperature * soft_slope) / 10
    assert torch.allclose(student.grad, by_rule, atol=1e-12)


def test_divergence_is_zero_for_equal_models_and_without_a_teacher() -> None:
    student, targets = torch.randn(1, 5, 7), torch.randint(7, (1, 5))
    assert terms(student, student.clone(), targets, 2.0)[1].item() == pytest.approx(0.0, abs=1e-6)
    assert terms(student, None, targets, 2.0)[1].item() == 0.0
    assert terms(student.bfloat16(), student.bfloat16(), targets, 2.0)[0].dtype == torch.float32


def test_learning_rate_rises_to_its_maximum_and_falls() -> None:
    for steps in (1, 2, 15, 200, 5000):
        result = [learning_rate_share(step, steps) for step in range(steps)]
        top = result.index(max(result))
        assert result[top] == 1.0
        assert result[: top + 1] == sorted(result[: top + 1])
        assert result[top:] == sorted(result[top:], reverse=True)
        assert min(result) > 0
        assert top == max(1, min(100, steps // 10)) - 1


def toward(target, parameter, pieces=1):
    """Return parts of a step with the squared distance to a target as loss, in equal pieces."""

    def compute():
        return ((parameter.float() - target) ** 2).sum(), torch.zeros(())

    return lambda step: [(1 / pieces, compute)] * pieces


def silent(*_):
    pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_adam_with_clipped_gradients_on_float32_masters(dtype) -> None:
    start, target = torch.randn(6).to(dtype), torch.randn(6)
    parameter = nn.Parameter(start.clone())
    Descent([parameter], [0.01], 30).run(toward(target, parameter, pieces=3), 0.0, silent)
    master, mean, square = start.double(), 0.0, 0.0
    for step in range(30):
        gradient = 2 * (master.to(dtype).double() - target)
        gradient = gradient.to(dtype).double() * min(1.0, 1.0 / (float(gradient.norm()) + 1e-6))
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        rate = 0.01 * learning_rate_share(step, 30)
        master = master - rate * (mean / (1 - 0.9 ** (step + 1))) / (
            (square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
        )
    assert parameter.dtype == dtype
    assert torch.allclose(parameter.double(), master, atol=1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_interrupted_descent_resumes_to_the_same_numbers(dtype, tmp_path) -> None:
    start, target = torch.randn(6).to(dtype), torch.randn(6)
    uninterrupted = nn.Parameter(start.clone())
    losses = Descent([uninterrupted], [0.01], 120).run(toward(target, uninterrupted), 0.0, silent)

    def stop(stage, done, total):
        if done == 77:
            raise Cancelled

    state, first, second = (
        tmp_path / "state.safetensors",
        nn.Parameter(start.clone()),
        nn.Parameter(start.clone()),
    )
    with pytest.raises(Cancelled):
        Descent([first], [0.01], 120, state, "one").run(toward(target, first), 0.0, stop)
    assert [path.name for path in tmp_path.iterdir()] == [state.name]
    descent = Descent([second], [0.01], 120, state, "one")
    assert descent.done == 50
    assert descent.run(toward(target, second), 0.0, silent) == losses
    assert torch.equal(second, uninterrupted)
    assert Descent([nn.Parameter(start.clone())], [0.01], 120, state, "another").done == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_loss_raises(value) -> None:
    parameter = nn.Parameter(torch.ones(3))

    def compute():
        return (parameter * value).sum(), torch.zeros(())

    with pytest.raises(InputError, match=r"step 1 of 5.*smaller lr"):
        Descent([parameter], [0.01], 5).run(lambda step: [(1.0, compute)], 0.0, silent)
    assert torch.equal(parameter, torch.ones(3))
