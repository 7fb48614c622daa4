"""An MLP trained towards what the refit wants of it: the steps themselves, what is left alone, and
a compressed model.
"""

import math

import pytest
import torch
from tiny_models import family_folder, tiny
from torch.nn.functional import relu, silu

import lrcore
from lrcore.compression import trained_mlp as training
from lrcore.compression.refit import refit_key
from lrcore.compression.trained_mlp import Seen, can_train, trained_mlp
from lrcore.compression.write import refits
from lrcore.forms import IdentityColumns, Sparse, dense, masked, quantise, two_of_four
from lrcore.layer import MLP, Linear, LowRank, Stored
from lrcore.models.architectures import ARCHITECTURES, architecture_of, decoder_layers
from lrcore.models.layers import projection_paths, read_layer

WIDTH, HIDDEN, TOKENS = 6, 10, 240


def drawn(*shape, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)


def plain(gated=True, bias=False, dtype=torch.float64):
    def linear(out, own, seed):
        shift = drawn(out, seed=seed + 10, dtype=dtype) if bias else None
        return Linear(drawn(out, own, seed=seed, dtype=dtype) / own**0.5, shift)

    gate = linear(HIDDEN, WIDTH, 3) if gated else None
    activation = "silu" if gated else "relu"
    return MLP(linear(HIDDEN, WIDTH, 1), linear(WIDTH, HIDDEN, 2), gate, activation)


def factored():
    """Gate and up by factors, up with an identity block; down as it is."""
    block = IdentityColumns(drawn(1, 4, WIDTH - 4, seed=4), torch.arange(WIDTH).flip(0).view(1, -1))
    mlp = plain()
    up = LowRank(block, drawn(HIDDEN, 4, seed=5))
    return MLP(up, mlp.down, LowRank(drawn(3, WIDTH, seed=6), drawn(HIDDEN, 3, seed=7)))


def outputs(mlp, x):
    def through(p, states):
        return states @ p.weight.mT + (0 if p.bias is None else p.bias)

    inner = through(mlp.up, x)
    inner = relu(inner) if mlp.gate is None else silu(through(mlp.gate, x)) * inner
    return through(mlp.down, inner)


def batches(dtype=torch.float64, noise=0.3):
    """What another MLP of the same shape gives, with tokens of unequal weight, in two batches."""
    x = drawn(TOKENS, WIDTH, seed=20, dtype=dtype)
    y = outputs(plain(dtype=dtype), x) + noise * drawn(TOKENS, WIDTH, seed=21, dtype=dtype)
    weights = drawn(TOKENS, seed=22, dtype=dtype).abs()
    parts = zip(x.split(120), y.split(120), weights.split(120), strict=True)
    return [Seen(*part) for part in parts]


def loss(mlp, seen):
    own = [((outputs(mlp, one.x) - one.y) ** 2).mean(-1) * one.weights for one in seen]
    return float(sum(each.sum() for each in own))


def slowly(mlp, seen):
    """The documented steps, written out."""
    x, y, weights = (
        torch.cat([getattr(one, name) for one in seen]) for name in ("x", "y", "weights")
    )
    tensors = [getattr(mlp, name).weight.clone() for name in ("gate", "up", "down")]
    highest = [0.03 * float((one**2).mean() ** 0.5) for one in tensors]
    first, second = [0 * one for one in tensors], [0 * one for one in tensors]
    g = torch.Generator().manual_seed(0)
    order = torch.cat([torch.randperm(TOKENS, generator=g) for _ in range(2)])
    rising = 0.2 * 60 - 1
    for step, own in enumerate(order.view(60, 8)):
        free = [one.clone().requires_grad_() for one in tensors]
        gate, up, down = free
        out = (silu(x[own] @ gate.mT) * (x[own] @ up.mT)) @ down.mT
        error = ((out - y[own]) ** 2).mean(-1) * weights[own]
        grads = torch.autograd.grad(error.mean(), free)
        for i, grad in enumerate(grads):
            if step <= rising:
                low, high, part = highest[i] / 25, highest[i], step / rising
            else:
                low, high = highest[i], highest[i] / 25 / 1e4
                part = (step - rising) / (59 - rising)
            rate = high + (low - high) / 2 * (1 + math.cos(math.pi * part))
            first[i] = 0.9 * first[i] + 0.1 * grad
            second[i] = 0.95 * second[i] + 0.05 * grad**2
            size = (second[i] / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8
            tensors[i] = tensors[i] - rate * first[i] / (1 - 0.9 ** (step + 1)) / size
    return tensors


def test_the_steps_are_those_that_are_documented():
    mlp, seen = perturbed(plain()), batches()
    got = trained_mlp(mlp, seen)
    for one, expected in zip((got.gate, got.up, got.down), slowly(mlp, seen), strict=True):
        assert torch.allclose(one.weight, expected, rtol=1e-9, atol=1e-12)


def perturbed(mlp):
    """Another MLP of the same shape."""
    parts = {
        name: Linear(p.weight + 0.3 * drawn(*p.weight.shape, seed=30), p.bias)
        for name, p in mlp.matrices().items()
    }
    return MLP(**parts, activation=mlp.activation)


@pytest.mark.parametrize("make", [plain, lambda: plain(False), lambda: plain(bias=True), factored])
def test_the_loss_falls_and_all_shapes_stay(make):
    mlp, seen = make(), batches()
    got = trained_mlp(mlp, seen)
    assert loss(got, seen) < 0.95 * loss(mlp, seen)
    for name, before in mlp.matrices().items():
        after = got.matrices()[name]
        assert (after.parameters, type(after)) == (before.parameters, type(before))
        assert not torch.equal(after.weight, before.weight)
        assert not after.weight.requires_grad
    assert got.activation == mlp.activation


def test_what_is_given_stays_as_it_is_and_the_result_is_the_same_again():
    mlp, seen = perturbed(plain()), batches()
    copies = [one.weight.clone() for one in mlp.matrices().values()]
    one, other = trained_mlp(mlp, seen), trained_mlp(mlp, seen)
    for name, before in zip(mlp.matrices(), copies, strict=True):
        assert torch.equal(mlp.matrices()[name].weight, before)
        assert torch.equal(one.matrices()[name].weight, other.matrices()[name].weight)


def test_an_identity_block_stays_one():
    before, after = factored().up.down, trained_mlp(factored(), batches()).up.down
    assert torch.equal(after.order, before.order)
    block = (dense(before) == 0).sum(0) == 3
    assert int(block.sum()) == 4
    assert torch.equal(dense(after)[:, block], dense(before)[:, block])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sixteen_bits_are_trained_in_float32_and_stay(dtype):
    mlp, seen = perturbed(plain(dtype=torch.float32)), batches(dtype)
    own = MLP(
        *(Linear(p.weight.to(dtype)) for p in (mlp.up, mlp.down, mlp.gate)), activation="silu"
    )
    got = trained_mlp(own, seen)
    assert {p.weight.dtype for p in got.matrices().values()} == {dtype}
    wide = [Seen(one.x.double(), one.y.double(), one.weights.double()) for one in seen]

    def widened(value):
        return MLP(*(Linear(p.weight.double()) for p in (value.up, value.down, value.gate)))

    assert loss(widened(got), wide) < loss(widened(own), wide)


def test_what_cannot_be_better_stays():
    mlp = plain()
    exact = [Seen(one.x, outputs(mlp, one.x), one.weights) for one in batches()]
    assert trained_mlp(mlp, exact) is mlp
    infinite = [Seen(one.x, one.y + torch.inf, one.weights) for one in exact]
    assert trained_mlp(mlp, infinite) is mlp


def test_of_many_tokens_some_are_taken_evenly(monkeypatch):
    x, y, weights = drawn(2, 15, WIDTH), drawn(2, 15, WIDTH, seed=1), drawn(2, 15, seed=2)
    whole = Seen.of(x, y, weights, total=training.MOST)
    assert torch.equal(whole.x, x.view(30, WIDTH))
    monkeypatch.setattr(training, "MOST", 100)
    some = Seen.of(x, y, weights, total=201)
    assert torch.equal(some.x, x.view(30, WIDTH)[::3])
    assert torch.equal(some.y, y.view(30, WIDTH)[::3])
    assert torch.equal(some.weights, weights.flatten()[::3])


def test_quantised_and_sparse_numbers_are_not_trained():
    mlp = plain()
    up = Stored(quantise(mlp.up.weight.float(), 8, 8))
    assert can_train(mlp)
    assert can_train(factored())
    assert not can_train(None)
    assert not can_train(MLP(up, mlp.down, mlp.gate))
    bits = LowRank(quantise(drawn(4, WIDTH).float(), 8, 8), drawn(HIDDEN, 4))
    assert not can_train(MLP(bits, mlp.down, mlp.gate))
    half = drawn(HIDDEN, 4, seed=8)
    down = drawn(4, WIDTH)
    assert not can_train(MLP(LowRank(down, masked(half, half > 0)), mlp.down, mlp.gate))
    pattern = torch.tensor([True, True, False, False]).expand(HIDDEN, 4)
    assert not can_train(MLP(LowRank(down, two_of_four(half, pattern)), mlp.down, mlp.gate))
    few = Sparse(torch.ones(1), torch.zeros(1, dtype=torch.int32), (HIDDEN, WIDTH))
    assert not can_train(MLP(LowRank(drawn(4, WIDTH), drawn(HIDDEN, 4), sparse=few), mlp.down))


# ---- as a part of the refit


@pytest.mark.parametrize(
    "family", [name for name, row in ARCHITECTURES.items() if not row.adds_more]
)
def test_what_is_trained_is_the_mlp_of_the_family(family):
    network = tiny(family)
    layer = read_layer(network, 0)
    if not can_train(layer.mlp):
        pytest.skip("the first layer has experts")
    module, seen = decoder_layers(network)[0], {}
    paths = projection_paths(architecture_of(network), module)
    for name in ("up", "down"):
        module.get_submodule(paths[name]).register_forward_hook(
            lambda _, args, out, name=name: seen.update({name: (args[0].clone(), out.clone())})
        )
    with torch.inference_mode():
        network(input_ids=torch.arange(3, 19).view(1, -1), use_cache=False)
        got = training._module(layer.mlp)(seen["up"][0])
    assert torch.allclose(got, seen["down"][1], rtol=1e-4, atol=1e-5)


def stream_error(model, small, tokens):
    """Mean square of what the last layer's output has lost, weighed as the refit weighs tokens."""
    last = [
        one.network(tokens, output_hidden_states=True).hidden_states[-2] for one in (model, small)
    ]
    return float(((last[0] - last[1]) ** 2).mean())


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2", "falcon", "phi3", "gemma2", "olmo2"])
@pytest.mark.parametrize("method", ["fused", "svd_llm"])
def test_training_brings_the_residual_stream_nearer_at_the_same_size(
    family, method, tiny_llama, tmp_path, story_file
):
    requested = lrcore.Recipe(
        model=str(family_folder(family, tiny_llama, tmp_path)),
        data=str(story_file),
        samples=16,
        seq_len=32,
        method=method,
        ratio=0.4,
    )
    model = lrcore.load(requested.model, dtype="float64")
    tokens = lrcore.calibrate(model, requested).tokens
    refit, trained = (
        lrcore.compress(model, requested.with_(refit=word)) for word in ("on", "trained")
    )
    with torch.inference_mode():
        assert stream_error(model, trained, tokens) < stream_error(model, refit, tokens)
    assert trained.size == refit.size
    assert trained.step(lrcore.Compressed).calibration["refit"]


def test_the_key_of_what_is_kept_follows_the_training(monkeypatch):
    recipe = lrcore.Recipe(method="a3", refit="trained")
    assert recipe.trains
    assert not recipe.with_(refit="on").trains
    assert refits(recipe, tiny("llama"))
    with pytest.raises(lrcore.InputError, match="family gemma3n_text a layer adds more"):
        refits(recipe, tiny("gemma3n_text"))
    without, before = refit_key(), refit_key(train=True)
    assert without != before
    monkeypatch.setattr(training, "PASSES", 3)
    assert refit_key(train=True) != before
    assert refit_key() == without
