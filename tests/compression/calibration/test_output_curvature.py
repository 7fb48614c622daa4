"""Curvatures of the outputs of projections, compared with loops over the tokens."""

import pytest
import torch
from tiny_models import tiny
from torch.nn.functional import cross_entropy

import lrcore
from lrcore.compression.calibration import gradients, output_curvature
from lrcore.compression.calibration.gradients import PASSES, collect
from lrcore.compression.calibration.output_curvature import SAMPLED, TEXT, next_tokens
from lrcore.layers.experts import expert_moments, expert_tap
from lrcore.layers.layer import MLP, Linear
from lrcore.layers.statistics import Moments
from lrcore.models.architectures import architecture_of, decoder_layers
from lrcore.models.layers import clone, expert_modules, projection_paths, read_layer, write_layer
from lrcore.models.stream import LayerStream
from lrcore.system.errors import InputError, ResourceError
from lrcore.system.hardware import Hardware
from lrcore.system.progress import silent

TOKENS = torch.randint(3, 250, (3, 17), generator=torch.Generator().manual_seed(0))
# grouped queries; fused qkv, stacked and by group; permuted pairs; fused gate and up; latents with
# experts; shared keys and values; experts
FAMILIES = ("llama", "gpt2", "falcon", "gptj", "phi3", "deepseek_v3", "gemma3n_text", "mixtral")


def doubled(projection: Linear, factor: float) -> Linear:
    return Linear(factor * projection.weight, projection.bias)


def with_separate_modules(network):
    """Return a copy with one module per matrix, in the layout of `read_layer`.

    Doubling and halving all weights writes every layer twice without changing it.
    """
    copy = clone(network)
    for factor in (2.0, 0.5):
        for index in range(len(decoder_layers(copy))):
            layer = read_layer(copy, index)
            matrices = {n: doubled(p, factor) for n, p in layer.matrices().items()}
            changed = layer.with_matrices(**matrices)
            if layer.experts is not None:
                mlps = [
                    MLP(
                        **{n: doubled(p, factor) for n, p in m.matrices().items()},
                        activation="silu",
                    )
                    for m in layer.experts.mlps
                ]
                changed = changed.with_experts(mlps)
            write_layer(copy, changed)
    return copy


def modules_of(network) -> dict[tuple[int, str], torch.nn.Module]:
    """Return the module of each matrix by layer and name."""
    modules, row = {}, architecture_of(network)
    for index, layer in enumerate(decoder_layers(network)):
        for name, path in projection_paths(row, layer).items():
            modules[index, name] = layer.get_submodule(path)
        for path, module in expert_modules(row, layer).items():
            if path.endswith("_proj"):
                number, leaf = path.split(".")[-2:]
                modules[index, expert_tap(leaf.removesuffix("_proj"), int(number))] = module
    return modules


def output_gradients(network, window: torch.Tensor, kind, number: int) -> dict:
    """Return the gradient [tokens, out] of a window's loss with respect to each output."""
    added: dict[tuple[int, str], torch.Tensor] = {}

    def add(slot):
        def hook(_module, _args, out):
            added[slot] = torch.zeros_like(out, requires_grad=True)
            return out + added[slot]

        return hook

    handles = [m.register_forward_hook(add(slot)) for slot, m in modules_of(network).items()]
    logits = network(window.unsqueeze(0), use_cache=False).logits[0]
    labels = next_tokens(logits, window, kind, number)
    slopes = torch.autograd.grad(
        cross_entropy(logits, labels, reduction="sum"), list(added.values()), allow_unused=True
    )
    for handle in handles:
        handle.remove()
    return {
        slot: torch.zeros_like(zero).flatten(0, -2) if slope is None else slope.flatten(0, -2)
        for (slot, zero), slope in zip(added.items(), slopes, strict=True)
    }


def clipped(norms: list[float], is_sampled: bool) -> list[float]:
    """Clip norms to three times their median, or to 0.1 to 10 times their mean."""
    nonzero = sorted(norm for norm in norms if norm > 0)
    if is_sampled:
        median = nonzero[(len(nonzero) - 1) // 2] if nonzero else 0.0
        return [min(norm, 3 * median) for norm in norms]
    mean = sum(nonzero) / max(len(nonzero), 1)
    return [min(max(norm, 0.1 * mean), 10 * mean) if norm > 0 else 0.0 for norm in norms]


def token_curvature(network, kind, slot) -> torch.Tensor:
    """Return the curvature of an output as a sum over tokens."""
    margin = 0 if kind.is_sampled or ":" in slot[1] else 2
    total = None
    for number, window in enumerate(TOKENS):
        slopes = output_gradients(network, window, kind, number).get(slot)
        if slopes is None:
            continue
        total = torch.zeros(slopes.shape[1], slopes.shape[1]) if total is None else total
        inner = slopes[margin : len(slopes) - margin]
        norms = [float(slope.norm()) for slope in inner]
        for slope, norm, target_norm in zip(
            inner, norms, clipped(norms, kind.is_sampled), strict=True
        ):
            if norm > 0:
                total = total + torch.outer(slope, slope) * (target_norm / norm) ** 2
    return total / (len(TOKENS) * (TOKENS.shape[1] - 2 * margin))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["sampled", "text"])
def test_curvature_is_the_mean_over_tokens(family: str, name: str) -> None:
    network = tiny(family)
    collected = list(collect(network, TOKENS, silent, PASSES[name]))
    assert not any(module._forward_hooks for module in network.modules())
    reference, kind = with_separate_modules(network), {"sampled": SAMPLED, "text": TEXT}[name]
    for index, moments in enumerate(collected):
        names = {matrix for matrix, _ in moments.values}
        assert names == {matrix for layer, matrix in modules_of(reference) if layer == index}
        for matrix in sorted(names)[:: 1 if family == "llama" else 3]:
            value = moments.values[matrix, kind.statistic]
            expected = token_curvature(reference, kind, (index, matrix))
            assert torch.allclose(value.float(), expected, rtol=1e-3, atol=1e-4 * expected.max())


def test_gradient_norms_are_clipped_by_median_or_mean() -> None:
    norms = torch.tensor([0.0, 1.0, 2.0, 3.0, 100.0])
    shortened = norms * output_curvature.up_to_medians(norms)
    assert shortened.tolist() == pytest.approx([0, 1, 2, 3, 6])
    norms = torch.tensor([0.0, 1e-3, 1.0, 1.0, 1000.0])
    mean = (1000 + 2 + 1e-3) / 4
    changed = norms * output_curvature.within_means(norms)
    assert changed.tolist() == pytest.approx([0, mean / 10, mean / 10, mean / 10, 1000])
    for limit in (output_curvature.up_to_medians, output_curvature.within_means):
        assert limit(torch.zeros(3)).tolist() == [1, 1, 1]
        assert not len(limit(torch.zeros(0)))


def test_sampled_tokens_follow_the_predictions() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(20000, 3)
    ids = torch.zeros(20000, dtype=torch.long)
    sampled_ids = next_tokens(logits, ids, SAMPLED, 0)
    shares = torch.bincount(sampled_ids, minlength=3) / 20000
    assert torch.allclose(shares, logits[0].softmax(-1), atol=0.02)
    assert torch.equal(sampled_ids, next_tokens(logits, ids, SAMPLED, 0))
    assert not torch.equal(sampled_ids, next_tokens(logits, ids, SAMPLED, 1))
    assert next_tokens(logits[:3], torch.tensor([4, 5, 6]), TEXT, 0).tolist() == [5, 6, -100]


def test_curvature_of_an_expert_is_normalized_by_its_squared_weights() -> None:
    """The sum over experts of share times `tr(dW^T R dW C)` then compares with a dense matrix."""
    network, tokens = tiny("mixtral"), TOKENS
    needs = frozenset({("mlp_in", "second"), ("mlp_hidden", "second")})
    moments = LayerStream(clone(network), tokens).run(0, needs)
    curvature = next(iter(collect(network, tokens, silent, PASSES["sampled"])))
    joined = Moments({**moments.values, **curvature.values}, moments.tokens)
    layer, reference = read_layer(network, 0), with_separate_modules(network)
    for number in range(4):
        expert = expert_moments(layer, joined, number)
        weights = moments.values["routing", "square"][number]
        for name in ("gate", "up", "down"):
            expected = token_curvature(reference, SAMPLED, (0, expert_tap(name, number))) / weights
            value = expert.values[name, SAMPLED.statistic]
            assert torch.allclose(value.float(), expected.float(), rtol=1e-3, atol=1e-6)


def test_expert_without_tokens_has_zero_curvature() -> None:
    collected = list(collect(tiny("mixtral"), TOKENS[:1, :1], silent, PASSES["sampled"]))
    sums = [float(v.abs().sum()) for (name, _), v in collected[0].values.items() if ":" in name]
    assert len(sums) == 12
    assert sorted(sums)[:6] == [0.0] * 6


def test_curvatures_are_collected_once_and_cached(
    tiny_llama, story_file, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=4, seq_len=32, method="svd_llm", ratio=0.2
    ).with_(options={"outputs": "curvature"})
    small = lrcore.compress(model, recipe)
    folder = next((tmp_path / "gradients").iterdir())
    size = (folder / "layer-0000.safetensors").stat().st_size
    widths = [len(p.weight) for p in read_layer(model.network, 0).matrices().values()]
    assert size < 4 * sum(n * (n + 34) / 2 for n in widths) + 4096  # half a matrix, float32
    monkeypatch.setattr(gradients, "collect", None)  # calling it would raise TypeError
    repeated = lrcore.compress(model, recipe)
    uncurved = lrcore.compress(model, recipe.with_(options={}))
    for index in range(2):
        matrices, same, plain = (
            read_layer(m.network, index).matrices() for m in (small, repeated, uncurved)
        )
        for name, projection in matrices.items():
            assert torch.equal(projection.weight, same[name].weight)
            assert not torch.allclose(projection.weight, plain[name].weight)


def test_sums_larger_than_free_memory_raise_before_the_first_pass(monkeypatch) -> None:
    network, done = tiny("llama"), []
    monkeypatch.setattr(output_curvature, "hardware", lambda _: Hardware("CPU", "", 1, 1000))
    with pytest.raises(
        ResourceError, match=r"^The curvatures of the outputs .* reads no gradients"
    ):
        list(collect(network, TOKENS, lambda *at: done.append(at), PASSES["sampled"]))
    assert not done


def test_non_finite_gradients_raise() -> None:
    network = tiny("llama")
    network.lm_head.weight[5, 3] = float("inf")
    with pytest.raises(InputError, match=r"of layer 0 are not finite \(text_curvature\)"):
        list(collect(network, TOKENS, silent, PASSES["text"]))
