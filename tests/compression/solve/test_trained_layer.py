"""Training of decoder layers toward the dense residual stream."""

import copy
import math

import pytest
import torch
from tiny_models import family_folder, tiny

import lrcore
from lrcore.compression.solve import trained_layer as training
from lrcore.compression.solve.compress_layers import has_refit
from lrcore.compression.solve.refit import refit_key
from lrcore.compression.solve.trained_layer import LayerTraining, TrainingBatch
from lrcore.layers.forms import dense, masked, quantize
from lrcore.layers.layer import Linear, LowRank, Stored
from lrcore.models.architectures import ARCHITECTURES, decoder_layers
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.stream import LayerStream
from lrcore.recipes.history import Compressed

pytestmark = pytest.mark.one_in(8)

LAYER = 1
TOKENS = torch.arange(3, 3 + 6 * 16).view(6, 16)


def perturbed(network, share=0.3):
    """Return a clone in which the matrices of LAYER have other weights."""
    network = clone(network)
    layer = read_layer(network, LAYER)
    g = torch.Generator().manual_seed(1)
    parts = {
        name: Linear(
            p.weight
            + share * p.weight.std() * torch.randn(p.weight.shape, generator=g).to(p.weight),
            p.bias,
        )
        for name, p in layer.matrices().items()
    }
    write_layer(network, layer.with_matrices(**parts))
    return network


def batches_of(network, small, windows=2):
    """Return batches of LAYER with the outputs of `network` as targets and unequal weights."""
    streams = [LayerStream(each, TOKENS, windows) for each in (network, small)]
    for index in range(LAYER):
        for stream in streams:
            stream.run(index)
    dense_stream, stream = streams
    inputs = list(stream.hidden)
    dense_stream.run(LAYER)
    g = torch.Generator().manual_seed(2)
    return [
        TrainingBatch(
            inputs[number],
            stream.call(LAYER, number),
            dense_stream.hidden[number],
            torch.rand(inputs[number].shape[:2], generator=g, dtype=torch.float64),
        )
        for number in range(len(inputs))
    ]


def train_layer(network, index, batches):
    LayerTraining().train(network, index, batches)


def tensors(network, index=LAYER):
    return {name: p.detach() for name, p in decoder_layers(network)[index].named_parameters()}


def losses(layer, weights, batch):
    """Return the loss of each token of a layer with other weights."""
    x, y, w = (value.clone() for value in (batch.x, batch.y, batch.weights))
    args, kwargs = batch.call
    kwargs = {
        name: tuple(part.clone() for part in value) if isinstance(value, tuple) else value
        for name, value in kwargs.items()
    }
    out = torch.func.functional_call(layer, weights, (x, *args), kwargs)
    return ((out - y) ** 2).mean(-1) * w


def total_loss(network, batches):
    """Return the loss of LAYER over all batches, computed in float32 at least."""
    layer = copy.deepcopy(decoder_layers(network)[LAYER])
    return training._Loss(layer if network.dtype == torch.float64 else layer.float()).total(batches)


def train_slowly(network, batches, rate):
    """Train by the documented steps, written out."""
    layer = decoder_layers(network)[LAYER]
    weights = {name: tensor.clone() for name, tensor in tensors(network).items()}
    highest = {name: rate * float((w**2).mean() ** 0.5) for name, w in weights.items()}
    first, second = ({name: 0 * w for name, w in weights.items()} for _ in range(2))
    g = torch.Generator().manual_seed(0)
    order = [n for _ in range(20) for n in torch.randperm(len(batches), generator=g).tolist()]
    rising = 0.2 * len(order) - 1
    for step, number in enumerate(order):
        free = {name: w.clone().requires_grad_() for name, w in weights.items()}
        loss = losses(layer, free, batches[number]).mean()
        grads = dict(zip(free, torch.autograd.grad(loss, list(free.values())), strict=True))
        for name, grad in grads.items():
            if step <= rising:
                low, high, part = highest[name] / 25, highest[name], step / rising
            else:
                low, high = highest[name], highest[name] / 25 / 1e4
                part = (step - rising) / (len(order) - 1 - rising)
            lr = high + (low - high) / 2 * (1 + math.cos(math.pi * part))
            first[name] = 0.9 * first[name] + 0.1 * grad
            second[name] = 0.95 * second[name] + 0.05 * grad**2
            size = (second[name] / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8
            weights[name] = weights[name] - lr * first[name] / (1 - 0.9 ** (step + 1)) / size
    return weights


def test_training_follows_the_documented_steps():
    network = tiny("llama").double()
    small = perturbed(network)
    batches = batches_of(network, small)
    layer = decoder_layers(small)[LAYER]
    tried = {rate: train_slowly(small, batches, rate) for rate in (0.03, 0.01, 0.003)}
    with torch.no_grad():
        totals = {
            rate: float(sum(losses(layer, weights, batch).sum() for batch in batches))
            for rate, weights in tried.items()
        }
    best = min(totals, key=totals.__getitem__)
    again = clone(small)
    training_run = LayerTraining()
    training_run.train(small, LAYER, batches)
    for name, trained in tensors(small).items():
        assert torch.allclose(trained, tried[best][name], rtol=1e-9, atol=1e-12), name
    assert training_run.best_rate == best
    training_run.train(again, LAYER, batches)  # a further layer, at the best rate of the first
    for name, trained in tensors(again).items():
        assert torch.equal(trained, tensors(small)[name])


def test_a_layer_whose_loss_rises_at_the_best_rate_is_trained_at_a_lower_one(monkeypatch):
    network = tiny("llama")
    batches, small = batches_of(network, perturbed(network)), perturbed(network)
    monkeypatch.setattr(training, "RATES", (1e3, 0.01))
    training_run = LayerTraining()
    training_run._best_rate = 1e3
    start = total_loss(small, batches)
    training_run.train(small, LAYER, batches)
    assert total_loss(small, batches) < 0.9 * start


@pytest.mark.parametrize(
    "family", [name for name, row in ARCHITECTURES.items() if not row.has_further_updates]
)
def test_training_lowers_the_loss_of_each_family_and_changes_one_layer(family):
    network = tiny(family)
    if len(decoder_layers(network)) <= LAYER:
        pytest.skip("the tiny model has one layer")
    small = perturbed(network)
    before, others = tensors(small), tensors(small, 0)
    dense_before = {name: tensor.clone() for name, tensor in tensors(network).items()}
    batches = batches_of(network, small)
    inputs = [batch.x.clone() for batch in batches]
    start = total_loss(small, batches)
    train_layer(small, LAYER, batches)
    assert total_loss(small, batches) < 0.9 * start
    after = tensors(small)
    assert {name: (t.shape, t.dtype) for name, t in after.items()} == {
        name: (t.shape, t.dtype) for name, t in before.items()
    }
    assert not any(p.requires_grad for p in small.parameters())
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors(small, 0).items())
    assert all(torch.equal(t, dense_before[name]) for name, t in tensors(network).items())
    assert all(torch.equal(batch.x, x) for batch, x in zip(batches, inputs, strict=True))


def test_training_is_reproducible():
    network = tiny("llama")
    small, second = perturbed(network), perturbed(network)
    batches = batches_of(network, small)
    train_layer(small, LAYER, batches)
    train_layer(second, LAYER, batches)
    for name, trained in tensors(small).items():
        assert torch.equal(trained, tensors(second)[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_layers_are_trained_in_float32_and_keep_their_dtype(dtype):
    network = tiny("llama").to(dtype)
    small = perturbed(network)
    batches = batches_of(network, small)
    start = total_loss(small, batches)
    train_layer(small, LAYER, batches)
    assert {tensor.dtype for tensor in tensors(small).values()} == {dtype}
    assert total_loss(small, batches) < 0.9 * start


def test_a_layer_that_cannot_improve_is_unchanged():
    network = tiny("llama")
    exact = batches_of(network, network)
    small = perturbed(network)
    infinite = [
        TrainingBatch(batch.x, batch.call, batch.y + torch.inf, batch.weights)
        for batch in batches_of(network, small)
    ]
    for unchanged, batches in ((clone(network), exact), (small, infinite)):
        before = tensors(unchanged)
        train_layer(unchanged, LAYER, batches)
        assert all(torch.equal(t, before[name]) for name, t in tensors(unchanged).items())


def test_quantized_sparse_and_shared_numbers_are_not_trained():
    network = tiny("llama")
    layer = read_layer(network, LAYER)
    q, up = layer.attention.q.weight, layer.mlp.up.weight
    half = torch.linalg.svd(up, full_matrices=False)
    factors = LowRank(half.S[:4].diag() @ half.Vh[:4], half.U[:, :4])
    sparse = LowRank(factors.down, masked(factors.up, factors.up > 0))
    changed = layer.with_matrices(q=Stored(quantize(q, 4, 8)), up=sparse)
    small = clone(network)
    write_layer(small, changed)
    shared = decoder_layers(small)[0].mlp.down_proj
    decoder_layers(small)[LAYER].mlp.down_proj = shared
    down = shared.weight.clone()
    train_layer(small, LAYER, batches_of(network, small))
    after = read_layer(small, LAYER)
    assert torch.equal(after.attention.q.weight, changed.attention.q.weight)
    assert torch.equal(dense(after.mlp.up.up), dense(sparse.up))
    assert torch.equal(decoder_layers(small)[0].mlp.down_proj.weight, down)
    assert not torch.equal(after.mlp.up.down, sparse.down)
    assert not torch.equal(after.mlp.gate.weight, layer.mlp.gate.weight)


def test_long_calibrations_are_subsampled_evenly(monkeypatch):
    network = tiny("llama")
    batches = batches_of(network, perturbed(network), windows=1)
    monkeypatch.setattr(training, "MAX_TOKENS", 2 * 16)
    few, all_batches = perturbed(network), perturbed(network)
    train_layer(few, LAYER, batches[::3])
    train_layer(all_batches, LAYER, batches)
    for name, trained in tensors(few).items():
        assert torch.equal(trained, tensors(all_batches)[name])


# ---- training within the refit


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
    recipe = requested(family_folder(family, tiny_llama, tmp_path), story_file, method)
    model = lrcore.load(recipe.model, dtype="float64")
    tokens = lrcore.calibrate(model, recipe).tokens
    refit, trained = (
        lrcore.compress(model, recipe.with_(refit=word)) for word in ("on", "trained")
    )
    with torch.inference_mode():
        assert stream_error(model, trained, tokens) < 0.9 * stream_error(model, refit, tokens)
    assert trained.size == refit.size
    assert trained.step(Compressed).calibration["refit"]


def requested(folder, story_file, method="fused"):
    return lrcore.Recipe(
        model=str(folder),
        data=str(story_file),
        samples=16,
        seq_len=32,
        method=method,
        ratio=0.4,
        refit="trained",
    )


def test_a_trained_model_is_the_same_offloaded_and_after_loading(tiny_llama, tmp_path, story_file):
    recipe = requested(tiny_llama, story_file)
    model = lrcore.compress(lrcore.load(recipe.model), recipe)
    offloaded = lrcore.compress(lrcore.load(recipe.model, offload=True), recipe.with_(offload=True))
    lrcore.save(model, tmp_path / "small")
    loaded = lrcore.load(str(tmp_path / "small"))
    with torch.inference_mode():
        expected = model.network(TOKENS).logits
        assert torch.equal(loaded.network(TOKENS).logits, expected)
        assert torch.equal(offloaded.network(TOKENS).logits, expected)


def test_layers_made_in_inference_mode_are_trained(tiny_llama, story_file):
    """As in the measurement of joint plans. Identity blocks have index buffers."""
    recipe = requested(tiny_llama, story_file, "latentllm")
    model = lrcore.load(recipe.model)
    expected = lrcore.compress(model, recipe)
    with torch.inference_mode():
        trained = lrcore.compress(model, recipe)
        assert torch.equal(trained.network(TOKENS).logits, expected.network(TOKENS).logits)


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
