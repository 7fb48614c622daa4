"""Checks for cancellation: the operations with a check and the operations without."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

import lrcore
from lrcore.system.cancellation import cancellable, unchecked
from lrcore.system.errors import Cancelled


class Asked:
    """Counts how often it is called; stops at the n-th."""

    def __init__(self, last=None):
        self.times, self.last = 0, last

    def __call__(self):
        self.times += 1
        if self.times == self.last:
            raise Cancelled("stopped")


def test_every_function_of_torch_asks_first():
    counter, x = Asked(), torch.ones(3)
    with cancellable(counter):
        for times in range(1, 4):
            x = x + 1
            assert counter.times == times
    x = x + 1
    assert counter.times == 3
    assert x.tolist() == [5.0] * 3


def test_one_that_stops_is_not_done():
    results = []

    def adds():
        results.append(torch.ones(3))
        results.append(torch.ones(3))

    with pytest.raises(Cancelled), cancellable(Asked(last=2)):
        adds()
    assert len(results) == 1


def test_what_restores_something_is_done_whatever_happens():
    """A context that is left, normally or because of the cancelling itself."""
    weight, restored = torch.ones(2, requires_grad=True), []

    def work(counter):
        try:
            counter.last = counter.times + 1  # from here on
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

    counter = Asked()
    with pytest.raises(Cancelled), cancellable(counter):
        work(counter)
    assert torch.is_grad_enabled()
    assert len(restored) == 1
    assert restored[0].requires_grad


def test_a_backward_pass_asks_within_itself_and_stops_there():
    """It is one function of torch, and in healing takes seconds."""
    counter, layers = Asked(), [torch.nn.Linear(2, 2) for _ in range(4)]
    network = torch.nn.Sequential(*layers)

    with cancellable(counter):
        loss = network(torch.ones(1, 2)).sum()
        counter.last = counter.times + 3  # the function itself, then after two layers
        with pytest.raises(Cancelled):
            loss.backward(retain_graph=True)
    reached = [layer.weight.grad is not None for layer in layers]
    assert reached == [False, False, True, True]
    loss.backward()  # outside, nothing is asked any more
    assert counter.times == counter.last
    assert all(layer.weight.grad is not None for layer in layers)


def test_what_is_timed_asks_at_modules_alone():
    counter, network = Asked(), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
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
    with unchecked():  # where nothing can be cancelled
        x + 1


def test_an_inner_check_leaves_the_outer_one():
    outer, inner, x = Asked(), Asked(), torch.ones(1)
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


def test_a_decoded_token_asks_at_modules_alone(tiny_llama):
    model, counter = lrcore.load(str(tiny_llama)), Asked()
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
def test_what_was_cancelled_is_done_the_same_when_asked_again(
    method, tiny_llama, story_file, tmp_path, monkeypatch
):
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=2, seq_len=16, method=method, ratio=0.3
    )

    def weights():
        return lrcore.compress(lrcore.load(str(tiny_llama)), recipe).network.state_dict()

    uninterrupted = Asked()
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "whole"))
    with cancellable(uninterrupted):
        expected = weights()
    # the first time takes more functions than the others: none stops in the last part of it
    for last in range(1, uninterrupted.times * 3 // 4, uninterrupted.times // 5):
        monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / str(last)))
        with pytest.raises(Cancelled), cancellable(Asked(last)):
            weights()
        resumed = weights()
        assert all(torch.equal(expected[name], resumed[name]) for name in expected)
