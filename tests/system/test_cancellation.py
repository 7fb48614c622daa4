"""Checks for cancellation: operations with and without a check."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

import lrcore
from lrcore.system.cancellation import cancellable, unchecked
from lrcore.system.errors import Cancelled


class Check:
    """Check that counts its calls, and cancels at the n-th."""

    def __init__(self, last=None):
        self.times, self.last = 0, last

    def __call__(self):
        self.times += 1
        if self.times == self.last:
            raise Cancelled("stopped")


def test_each_torch_function_calls_the_check():
    counter, x = Check(), torch.ones(3)
    with cancellable(counter):
        for times in range(1, 4):
            x = x + 1
            assert counter.times == times
    x = x + 1
    assert counter.times == 3
    assert x.tolist() == [5.0] * 3


def test_a_canceled_function_is_not_executed():
    results = []

    def adds():
        results.append(torch.ones(3))
        results.append(torch.ones(3))

    with pytest.raises(Cancelled), cancellable(Check(last=2)):
        adds()
    assert len(results) == 1


def test_functions_that_restore_state_are_executed_without_a_check():
    """Leave a context normally or because of the cancellation."""
    weight, restored = torch.ones(2, requires_grad=True), []

    def work(counter):
        try:
            counter.last = counter.times + 1  # cancel from now on
            with torch.no_grad():
                pass
            weight.requires_grad_(False)
            weight.requires_grad = True
            torch.set_default_dtype(torch.float32)
            assert torch.is_grad_enabled()
            with torch.no_grad():
                weight + 1
        finally:
            restored.append(weight + 1)

    counter = Check()
    with pytest.raises(Cancelled), cancellable(counter):
        work(counter)
    assert torch.is_grad_enabled()
    assert len(restored) == 1
    assert restored[0].requires_grad


def test_a_backward_pass_is_canceled_between_layers():
    """A backward pass is a single function of torch, which takes seconds in healing."""
    counter, layers = Check(), [torch.nn.Linear(2, 2) for _ in range(4)]
    network = torch.nn.Sequential(*layers)

    with cancellable(counter):
        loss = network(torch.ones(1, 2)).sum()
        counter.last = counter.times + 3  # the function itself, then two layers
        with pytest.raises(Cancelled):
            loss.backward(retain_graph=True)
    reached = [layer.weight.grad is not None for layer in layers]
    assert reached == [False, False, True, True]
    loss.backward()  # no check outside the context
    assert counter.times == counter.last
    assert all(layer.weight.grad is not None for layer in layers)


def test_unchecked_code_calls_the_check_at_modules_only():
    counter, network = Check(), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    x = torch.ones(1, 2)
    with cancellable(counter):
        with unchecked():
            network(x)
            assert counter.times == 3
            with unchecked():
                x + 1
            x + 1
        assert counter.times == 3
        x + 1
        assert counter.times == 4
    with unchecked():  # without a check
        x + 1


def test_an_inner_check_replaces_the_outer_one_temporarily():
    outer, inner, x = Check(), Check(), torch.ones(1)
    with cancellable(outer):
        with cancellable(inner):
            x + 1
            with unchecked():
                x + 1
        assert inner.times == 1
        before = outer.times
        x + 1
        assert outer.times == before + 1
        assert inner.times == 1


def test_generation_calls_the_check_at_modules_only(tiny_llama):
    model, counter = lrcore.load(str(tiny_llama)), Check()
    functions = []

    class Counting(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            functions.append(func)
            return func(*args, **(kwargs or {}))

    with Counting():
        list(lrcore.generate(model, "a", max_new_tokens=4))
    with cancellable(counter):
        list(lrcore.generate(model, "a", max_new_tokens=4))
    assert 0 < counter.times < len(functions) / 2


@pytest.mark.parametrize("method", ["svd_llm", "modegpt", "fused"])
def test_a_canceled_compression_gives_the_same_result_when_repeated(
    method, tiny_llama, story_file, tmp_path, monkeypatch
):
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=2, seq_len=16, method=method, ratio=0.3
    )

    def weights():
        return lrcore.compress(lrcore.load(str(tiny_llama)), recipe).network.state_dict()

    uninterrupted = Check()
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "whole"))
    with cancellable(uninterrupted):
        expected = weights()
    # the first run has more functions than later ones, so cancel before its last part
    for last in range(1, uninterrupted.times * 3 // 4, uninterrupted.times // 5):
        monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / str(last)))
        with pytest.raises(Cancelled), cancellable(Check(last)):
            weights()
        resumed = weights()
        assert all(torch.equal(expected[name], resumed[name]) for name in expected)
