"""Training of an MLP toward the targets of the refit."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_models import family_folder, tiny
from torch.nn.functional import relu, silu

import lrcore
from lrcore.compression.solve import trained_mlp as training
from lrcore.compression.solve.compress_layers import has_refit
from lrcore.compression.solve.refit import refit_key
from lrcore.compression.solve.trained_mlp import TokenSample, can_train, trained_mlp
from lrcore.layers.forms import IdentityColumns, Sparse, dense, masked, quantize, two_of_four
from lrcore.layers.layer import MLP, Linear, LowRank, Stored
from lrcore.models.architectures import ARCHITECTURES, architecture_of, decoder_layers
from lrcore.models.layers import projection_paths, read_layer
from lrcore.recipes.history import Compressed

pytestmark = pytest.mark.one_in(3)

WIDTH, HIDDEN, TOKENS = 6, 10, 240


def random_tensor(*shape, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)


def plain(gated=True, bias=False, dtype=torch.float64):
    def linear(out, width, seed):
        shift = random_tensor(out, seed=seed + 10, dtype=dtype) if bias else None
        return Linear(random_tensor(out, width, seed=seed, dtype=dtype) / width**0.5, shift)

    gate = linear(HIDDEN, WIDTH, 3) if gated else None
    activation = "silu" if gated else "relu"
    return MLP(linear(HIDDEN, WIDTH, 1), linear(WIDTH, HIDDEN, 2), gate, activation)


def factored():
    """Return an MLP with factored gate and up, an identity block in up, and dense down."""
    block = IdentityColumns(
        random_tensor(1, 4, WIDTH - 4, seed=4), torch.arange(WIDTH).flip(0).view(1, -1)
    )
    mlp = plain()
    up = LowRank(block, random_tensor(HIDDEN, 4, seed=5))
    return MLP(
        up, mlp.down, LowRank(random_tensor(3, WIDTH, seed=6), random_tensor(HIDDEN, 3, seed=7))
    )


def outputs(mlp, x):
    def through(p, states):
        return states @ p.weight.mT + (0 if p.bias is None else p.bias)

    inner = through(mlp.up, x)
    inner = relu(inner) if mlp.gate is None else silu(through(mlp.gate, x)) * inner
    return through(mlp.down, inner)


def batches(dtype=torch.float64, noise=0.3):
    """Return two batches of outputs of a second MLP, with unequal token weights."""
    x = random_tensor(TOKENS, WIDTH, seed=20, dtype=dtype)
    y = outputs(plain(dtype=dtype), x) + noise * random_tensor(TOKENS, WIDTH, seed=21, dtype=dtype)
    weights = random_tensor(TOKENS, seed=22, dtype=dtype).abs()
    parts = zip(x.split(120), y.split(120), weights.split(120), strict=True)
    return [TokenSample(*part) for part in parts]


def loss(mlp, seen):
    token_losses = [
        ((outputs(mlp, sample.x) - sample.y) ** 2).mean(-1) * sample.weights for sample in seen
    ]
    return float(sum(losses.sum() for losses in token_losses))


def train_slowly(mlp, seen):
    """Train by the documented steps, written out."""
    x, y, weights = (
        torch.cat([getattr(tensor, name) for tensor in seen]) for name in ("x", "y", "weights")
    )
    tensors = [getattr(mlp, name).weight.clone() for name in ("gate", "up", "down")]
    highest = [0.03 * float((tensor**2).mean() ** 0.5) for tensor in tensors]
    first, second = [0 * tensor for tensor in tensors], [0 * tensor for tensor in tensors]
    g = torch.Generator().manual_seed(0)
    order = torch.cat([torch.randperm(TOKENS, generator=g) for _ in range(2)])
    rising = 0.2 * 60 - 1
    for step, batch in enumerate(order.view(60, 8)):
        free = [tensor.clone().requires_grad_() for tensor in tensors]
        gate, up, down = free
        out = (silu(x[batch] @ gate.mT) * (x[batch] @ up.mT)) @ down.mT
        error = ((out - y[batch]) ** 2).mean(-1) * weights[batch]
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


def test_training_follows_the_documented_steps():
    mlp, seen = perturbed(plain()), batches()
    got = trained_mlp(mlp, seen)
    for trained, expected in zip(
        (got.gate, got.up, got.down), train_slowly(mlp, seen), strict=True
    ):
        assert torch.allclose(trained.weight, expected, rtol=1e-9, atol=1e-12)


def perturbed(mlp):
    """Return an MLP of the same shape with other weights."""
    parts = {
        name: Linear(p.weight + 0.3 * random_tensor(*p.weight.shape, seed=30), p.bias)
        for name, p in mlp.matrices().items()
    }
    return MLP(**parts, activation=mlp.activation)


@pytest.mark.parametrize("make", [plain, lambda: plain(False), lambda: plain(bias=True), factored])
def test_training_lowers_the_loss_and_keeps_all_shapes(make):
    mlp, seen = make(), batches()
    got = trained_mlp(mlp, seen)
    assert loss(got, seen) < 0.95 * loss(mlp, seen)
    for name, before in mlp.matrices().items():
        after = got.matrices()[name]
        assert (after.parameters, type(after)) == (before.parameters, type(before))
        assert not torch.equal(after.weight, before.weight)
        assert not after.weight.requires_grad
    assert got.activation == mlp.activation


def test_training_is_reproducible_and_leaves_its_input_unchanged():
    mlp, seen = perturbed(plain()), batches()
    copies = [first.weight.clone() for first in mlp.matrices().values()]
    first, second = trained_mlp(mlp, seen), trained_mlp(mlp, seen)
    for name, before in zip(mlp.matrices(), copies, strict=True):
        assert torch.equal(mlp.matrices()[name].weight, before)
        assert torch.equal(first.matrices()[name].weight, second.matrices()[name].weight)


def test_identity_block_stays_an_identity():
    before, after = factored().up.down, trained_mlp(factored(), batches()).up.down
    assert torch.equal(after.order, before.order)
    block = (dense(before) == 0).sum(0) == 3
    assert int(block.sum()) == 4
    assert torch.equal(dense(after)[:, block], dense(before)[:, block])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_16_bit_weights_are_trained_in_float32_and_keep_their_dtype(dtype):
    mlp, seen = perturbed(plain(dtype=torch.float32)), batches(dtype)
    gateless = MLP(
        *(Linear(p.weight.to(dtype)) for p in (mlp.up, mlp.down, mlp.gate)), activation="silu"
    )
    got = trained_mlp(gateless, seen)
    assert {p.weight.dtype for p in got.matrices().values()} == {dtype}
    wide = [
        TokenSample(sample.x.double(), sample.y.double(), sample.weights.double())
        for sample in seen
    ]

    def widened(value):
        return MLP(*(Linear(p.weight.double()) for p in (value.up, value.down, value.gate)))

    assert loss(widened(got), wide) < loss(widened(gateless), wide)


def test_mlp_that_cannot_improve_is_returned_unchanged():
    mlp = plain()
    exact = [TokenSample(sample.x, outputs(mlp, sample.x), sample.weights) for sample in batches()]
    assert trained_mlp(mlp, exact) is mlp
    infinite = [TokenSample(sample.x, sample.y + torch.inf, sample.weights) for sample in exact]
    assert trained_mlp(mlp, infinite) is mlp


def test_large_batches_are_subsampled_evenly(monkeypatch):
    x, y, weights = (
        random_tensor(2, 15, WIDTH),
        random_tensor(2, 15, WIDTH, seed=1),
        random_tensor(2, 15, seed=2),
    )
    complete = TokenSample.of(x, y, weights, total=training.MAX_TOKENS)
    assert torch.equal(complete.x, x.view(30, WIDTH))
    monkeypatch.setattr(training, "MAX_TOKENS", 100)
    subset = TokenSample.of(x, y, weights, total=201)
    assert torch.equal(subset.x, x.view(30, WIDTH)[::3])
    assert torch.equal(subset.y, y.view(30, WIDTH)[::3])
    assert torch.equal(subset.weights, weights.flatten()[::3])


def test_quantized_and_sparse_weights_cannot_be_trained():
    mlp = plain()
    up = Stored(quantize(mlp.up.weight.float(), 8, 8))
    assert can_train(mlp)
    assert can_train(factored())
    assert not can_train(None)
    assert not can_train(replace(mlp, activation="xielu"))
    assert not can_train(MLP(up, mlp.down, mlp.gate))
    bits = LowRank(quantize(random_tensor(4, WIDTH).float(), 8, 8), random_tensor(HIDDEN, 4))
    assert not can_train(MLP(bits, mlp.down, mlp.gate))
    half = random_tensor(HIDDEN, 4, seed=8)
    down = random_tensor(4, WIDTH)
    assert not can_train(MLP(LowRank(down, masked(half, half > 0)), mlp.down, mlp.gate))
    pattern = torch.tensor([True, True, False, False]).expand(HIDDEN, 4)
    assert not can_train(MLP(LowRank(down, two_of_four(half, pattern)), mlp.down, mlp.gate))
    few = Sparse(torch.ones(1), torch.zeros(1, dtype=torch.int32), (HIDDEN, WIDTH))
    assert not can_train(
        MLP(LowRank(random_tensor(4, WIDTH), random_tensor(HIDDEN, 4), sparse=few), mlp.down)
    )


# ---- training within the refit


@pytest.mark.parametrize(
    "family", [name for name, row in ARCHITECTURES.items() if not row.has_further_updates]
)
def test_trained_module_equals_the_mlp_of_the_family(family):
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
    """Return the mean squared error of the last layer's output, before the final norm."""
    last = [
        compared.network(tokens, output_hidden_states=True).hidden_states[-2]
        for compared in (model, small)
    ]
    return float(((last[0] - last[1]) ** 2).mean())


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2", "falcon", "phi3", "gemma2", "olmo2"])
@pytest.mark.parametrize("method", ["fused", "svd_llm"])
def test_training_lowers_the_error_of_the_residual_stream_at_the_same_size(
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
    assert trained.step(Compressed).calibration["refit"]


def test_refit_key_depends_on_the_training_settings(monkeypatch):
    recipe = lrcore.Recipe(method="a3", refit="trained")
    assert recipe.trains
    assert not recipe.with_(refit="on").trains
    assert has_refit(recipe, tiny("llama"))
    with pytest.raises(lrcore.InputError, match="Layers of family gemma3n_text add more"):
        has_refit(recipe, tiny("gemma3n_text"))
    without, before = refit_key(), refit_key(train=True)
    assert without != before
    monkeypatch.setattr(training, "PASSES", 3)
    assert refit_key(train=True) != before
    assert refit_key() == without
