"""Contract of all families: layers are read, written, compressed, cached and padded correctly."""

from functools import cache

import pytest
import torch
from plans import one_form
from through_caches import in_pieces
from tiny_models import CONFIGS, FAMILIES, STRUCTURES, family_folder, noisy, sampled, tiny
from transformers import AutoConfig

import lrcore
from lrcore import InputError
from lrcore.layers.layer import Linear
from lrcore.layers.modules.compressed import SIZES, CompressedAttention
from lrcore.layers.modules.install import attention_module, install
from lrcore.layers.modules.rotary import full_head_tables, in_halves
from lrcore.methods import METHODS, truncate
from lrcore.methods.fused_forms import cached_latents
from lrcore.methods.latentllm.joint import rotary_offsets
from lrcore.models.architectures import ARCHITECTURES, UNSUPPORTED_FAMILIES, decoder_layers
from lrcore.models.config import read_config
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.model_size import measure
from lrcore.models.partial import starting_at
from lrcore.models.stream import LayerStream, angles_of, rotate_states
from lrcore.models.structure import structure

SOLVED = STRUCTURES
CASES = sampled(lambda family, _: family in ("llama", "opt"))
# families whose attention modules can be replaced, in all layers or in those with attention
REPLACED = [name for name, row in ARCHITECTURES.items() if not (row.native_attention or row.mixer)]
REPLACED_IN_PART = [
    name for name, row in ARCHITECTURES.items() if row.mixer and not row.native_attention
]
TOKENS = torch.randint(3, 300, (3, 24), generator=torch.Generator().manual_seed(5))


@cache
def dense(family: str):
    """Return a tiny network and the moments of its layers, for all methods."""
    network = tiny(family)
    needs = frozenset({("block", "influence")}).union(*(METHODS[method].needs for method in SOLVED))
    stream = LayerStream(network, TOKENS, batch=2)  # batches of different sizes
    return network, [stream.run(index, needs) for index in range(len(decoder_layers(network)))]


@cache
def compressed(family: str, method: str):
    """Return a copy of the network with 70 % of the ranks of each slot."""
    network, moments = dense(family)
    small = clone(network)
    for index, moments_of_layer in enumerate(moments):
        layer = read_layer(small, index)
        factors = METHODS[method].factor(layer, moments_of_layer)
        offered = {
            name: [rank for rank in f.cost.ranks() if rank <= f.cost.cap]
            for name, f in factors.items()
            if name in one_form(method, factors, index)
        }
        ranks = {
            name: moments_of_layer[int(0.7 * len(moments_of_layer))]
            for name, moments_of_layer in offered.items()
        }
        write_layer(small, truncate(layer, factors, ranks))
    return small


def logits(network, tokens=TOKENS, **kwargs):
    with torch.inference_mode():
        return network(tokens, **kwargs).logits


def close(a, b) -> bool:
    return torch.allclose(a, b, atol=1e-4 * float(b.abs().max()))


def test_every_family_has_a_tiny_model() -> None:
    assert not UNSUPPORTED_FAMILIES.keys() & ARCHITECTURES.keys()
    assert CONFIGS.keys() == ARCHITECTURES.keys(), (
        "every family needs a tiny model in CONFIGS of tests/tiny_models.py: see 'A model family' "
        "in docs/extending.md"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_hidden_states_equal_those_of_the_model(family) -> None:
    network, _ = dense(family)
    expected, stream = (
        network(TOKENS, output_hidden_states=True, use_cache=False).hidden_states,
        LayerStream(network, TOKENS, batch=2),
    )
    batch = stream.hidden[0].shape.index(2)  # before or after the residual streams, if several
    assert close(torch.cat(stream.hidden, batch), expected[0])
    stream.run(0)
    assert close(torch.cat(stream.hidden, batch), expected[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_starting_at_a_layer_gives_the_logits_of_a_full_pass(family) -> None:
    network, _ = dense(family)
    full_logits, stream = (
        logits(network, TOKENS[:2], use_cache=False),
        LayerStream(network, TOKENS[:2]),
    )
    stream.run(0)
    with starting_at(network, 1, stream.hidden[0], next(iter(stream.shared), None)):
        assert close(logits(network, TOKENS[:2], use_cache=False), full_logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_and_writing_layers_keeps_the_logits_bit_for_bit(family) -> None:
    network, _ = dense(family)
    copied = clone(network)
    for index in range(len(decoder_layers(copied))):
        write_layer(copied, read_layer(copied, index))
    assert torch.equal(logits(copied), logits(network))


def test_config_field_selects_the_row_of_a_variant() -> None:
    network = noisy("glm4_moe", CONFIGS["glm4_moe"] | {"use_qk_norm": True})
    stream, copied = LayerStream(network, TOKENS), clone(network)
    for index in range(2):
        layer = read_layer(copied, index)
        assert layer.attention.is_native
        factors = METHODS["fused"].factor(layer, stream.run(index, METHODS["fused"].needs))
        ranks = {name: factor.cost.full for name, factor in factors.items()}
        write_layer(copied, truncate(layer, factors, ranks))
    assert torch.equal(logits(copied), logits(network))
    assert not read_layer(tiny("glm4_moe"), 0).attention.is_native


@pytest.mark.parametrize(("family", "method"), CASES)
def test_full_rank_keeps_the_dense_model(family, method) -> None:
    network, moments = dense(family)
    copied = clone(network)
    for index, moments_of_layer in enumerate(moments):
        layer = read_layer(copied, index)
        factors = METHODS[method].factor(layer, moments_of_layer)
        named = METHODS[method].components
        expected = layer.components if "ov" in named else layer.matrices()
        expected = layer.structures if "heads" in named else expected
        if layer.experts is not None and METHODS[method].solves_experts:
            inner = layer.of_expert(0)
            expected = [*expected, *(inner.components if "mlp" in named else inner.matrices())]
        if method == "latentllm":  # some slots have two matrices
            assert sum(f.cost.dense for f in factors.values()) == layer.parameters
        else:
            assert {*expected} & {*named} == {*factors} & {*named}
        write_layer(
            copied, truncate(layer, factors, {name: f.cost.full for name, f in factors.items()})
        )
    assert torch.equal(logits(copied), logits(network))


@pytest.mark.parametrize(
    "family",
    [
        family
        for family, row in ARCHITECTURES.items()
        if row.position == "rotary" and row.norms is None and not row.native_attention
    ],
)
def test_frequencies_of_a_layer_rotate_like_the_network(family) -> None:
    network, _ = dense(family)
    calls: list[dict] = []
    handles = [
        layer.register_forward_pre_hook(
            lambda _module, _args, kwargs: calls.append(kwargs), with_kwargs=True
        )
        for layer in decoder_layers(network)
    ]
    logits(network)
    for handle in handles:
        handle.remove()
    modules = (getattr(module, "attention_scaling", 1.0) for module in network.modules())
    scaled = max(modules) ** 2  # YaRN scales all products
    for index, kwargs in enumerate(calls):
        a = read_layer(network, index).attention
        if a.position == "none":
            assert a.frequencies is None
            continue
        angles = angles_of(network, decoder_layers(network)[index], kwargs, network.dtype)
        cos, sin = full_head_tables(*in_halves(a.tables, *angles), a.head_size)
        turns = rotary_offsets(a.frequencies.double(), a.head_size, 5)
        q, k = torch.randn(2, 24, a.head_size).double().unsqueeze(1)  # [1, t, size] each
        turned_q, turned_k = (
            rotate_states(states, cos.double(), sin.double())[0] for states in (q, k)
        )
        for m, n in ((7, 7), (20, 17), (9, 4)):
            assert float(turned_q[m] @ turned_k[n]) == pytest.approx(
                scaled * float(q[0, m] @ turns[m - n] @ k[0, n]), abs=1e-4
            )


@pytest.mark.parametrize(
    ("family", "latent"),
    [
        *((family, "") for family in (*REPLACED, *REPLACED_IN_PART)),
        *((family, "kv") for family in REPLACED),
    ],
)
def test_compressed_attention_with_all_heads_equals_native_attention(family, latent) -> None:
    """Masks, windows, softcaps, ALiBi, norms, partial rotary and scales do not change."""
    network, _ = dense(family)
    copied = with_compressed_attention(network, latent)
    assert close(logits(copied), logits(network))
    assert close(by_pieces(copied), logits(network))
    mask, positions = left_padding()
    padded = {"attention_mask": mask, **positions_of(copied, positions)}
    assert close(
        logits(copied, padded_tokens(), **padded)[:, 6:],
        logits(network, padded_tokens(), **padded)[:, 6:],
    )


def with_compressed_attention(network, latent=""):
    """Return a copy whose attention modules are compressed ones with all heads."""
    row, copied = ARCHITECTURES[network.config.model_type], clone(network)
    for index, module in enumerate(decoder_layers(copied)):
        value = read_layer(copied, index).attention
        if value.is_native:  # a mixer
            continue
        native = module.get_submodule(row.attention)
        sizes = {name: getattr(value, name) for name in SIZES} | {
            "selected_pairs": False,
            "selected_heads": False,
            "tables": value.tables,
            "latent": latent,
        }
        module.set_submodule(
            row.attention,
            attention_module(copied, f"{row.layers}.{index}", sizes, index, native).fill(value),
        )
    return copied


@pytest.mark.parametrize("family", ["llama", "qwen3", "stablelm"])
def test_a_partial_rotary_factor_counts_only_if_the_family_reads_it(family) -> None:
    positions = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    network = noisy(family, CONFIGS[family] | {"rope_parameters": positions})
    assert close(logits(with_compressed_attention(network)), logits(network))


@pytest.mark.parametrize(("family", "method"), CASES)
def test_compressed_model_gives_the_same_logits_with_a_cache(family, method) -> None:
    network, _ = dense(family)
    small = compressed(family, method)
    assert measure(small).decoder_linear < measure(network).decoder_linear
    assert measure(small).parameters < measure(network).parameters
    full_logits = logits(small)
    assert not torch.equal(full_logits, logits(network))
    assert torch.isfinite(full_logits).all()
    assert close(by_pieces(small), full_logits)


@pytest.mark.parametrize(("family", "method"), CASES)
def test_compressed_model_gives_the_same_logits_with_left_padding(family, method) -> None:
    small = compressed(family, method)
    mask, positions = left_padding()
    together = logits(small, padded_tokens(), attention_mask=mask, **positions_of(small, positions))
    assert close(together[:1, 6:], logits(small, TOKENS[:1, :18]))
    assert close(together[1:], logits(small, TOKENS[1:2]))


@pytest.mark.parametrize(("family", "method"), CASES)
def test_structure_and_state_rebuild_the_compressed_model(family, method) -> None:
    network, _ = dense(family)
    small, rebuilt = compressed(family, method), clone(network)
    with torch.device("meta"):
        install(rebuilt, structure(small))
    rebuilt.load_state_dict(small.state_dict(), strict=True, assign=True)
    assert close(logits(rebuilt), logits(small))


@pytest.mark.parametrize("family", REPLACED)
def test_cached_latents_of_fused_shrink_the_cache_and_keep_the_logits(family) -> None:
    """The logits are equal with a cache, with padding, and after rebuilding."""
    network, moments = dense(family)
    small = clone(network)
    for index, moments_of_layer in enumerate(moments):
        layer = read_layer(small, index)
        factors = cached_latents(layer, moments_of_layer)
        ranks = {name: int(0.7 * factor.cost.kv_cap) for name, factor in factors.items()}
        write_layer(small, truncate(layer, factors, ranks))
    full_logits = logits(small)
    assert measure(small).kv_values < 0.8 * measure(network).kv_values
    assert all(read_layer(small, i).attention.latent == "kv" for i in range(2))
    assert close(by_pieces(small), full_logits)
    mask, positions = left_padding()
    together = logits(small, padded_tokens(), attention_mask=mask, **positions_of(small, positions))
    assert close(together[:1, 6:], logits(small, TOKENS[:1, :18]))
    rebuilt = clone(network)
    with torch.device("meta"):
        install(rebuilt, structure(small))
    rebuilt.load_state_dict(small.state_dict(), strict=True, assign=True)
    assert close(logits(rebuilt), full_logits)


def by_pieces(network):
    sizes = [9, 1, 1, TOKENS.shape[1] - 11]
    if network.config.model_type == "jamba":  # transformers continues its states token by token
        sizes = [TOKENS.shape[1] - 2, 1, 1]
    return in_pieces(network, TOKENS, sizes)


@pytest.mark.parametrize("fields", [{"multi_query": True}, {"multi_query": False}])
def test_falcon_supports_multi_query_and_full_multi_head_attention(fields) -> None:
    """The config sets the number of groups of the fused matrix: 1, or one per head."""
    options = {"new_decoder_architecture": False, "num_kv_heads": None, **fields}
    network = noisy("falcon", CONFIGS["falcon"] | options)
    copied = clone(network)
    for index in range(2):
        assert read_layer(copied, index).attention.n_kv == (1 if fields["multi_query"] else 4)
        for factor in (2.0, 0.5):  # the first change splits the matrix, the second reverts it
            layer = read_layer(copied, index)
            q = layer.attention.q
            write_layer(copied, layer.with_matrices(q=Linear(factor * q.weight, factor * q.bias)))
        attention = decoder_layers(copied)[index].self_attention
        assert isinstance(attention, CompressedAttention)
    assert close(logits(copied), logits(network))
    assert close(by_pieces(copied), logits(network))


def padded_tokens():
    return torch.cat((torch.cat((torch.full((1, 6), 2), TOKENS[:1, :18]), 1), TOKENS[1:2]))


def left_padding():
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[0, :6] = 0
    return mask, (mask.cumsum(-1) - 1).clamp_min(0)


def positions_of(network, positions):
    """Return position arguments; ALiBi families take none."""
    return {} if network.config.model_type in ("bloom", "mpt") else {"position_ids": positions}


def test_unsupported_configs_raise_with_the_reason(tmp_path) -> None:
    config = AutoConfig.for_model("phi", **CONFIGS["phi"], qk_layernorm=True)
    config.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="qk_layernorm True is not supported, only with False"):
        read_config(tmp_path)
    shared = CONFIGS["deepseek_v2"] | {"num_key_value_heads": 1}
    AutoConfig.for_model("deepseek_v2", **shared).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"num_key_value_heads is 1, but .* per query head"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gemma3n"}')
    with pytest.raises(
        InputError, match=r"'gemma3n' .* not supported: images .* gemma3n_text\. Supported: "
    ):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(InputError, match=r"'t5' .* is not supported\. Supported: llama, "):
        read_config(tmp_path)


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "gptj", "mixtral"])
def test_family_is_compressed_saved_and_reloaded(family, tiny_llama, story_file, tmp_path) -> None:
    """Use the public API, with the tokenizer of another model."""
    model = lrcore.load(str(family_folder(family, tiny_llama, tmp_path / "dense")))
    recipe = lrcore.Recipe(
        model=str(tmp_path / "dense"),
        data=str(story_file),
        samples=4,
        seq_len=32,
        ratio=0.2,
        method="fused",
    )
    small = lrcore.compress(model, recipe)
    assert small.account.to_dict()["achieved"] == pytest.approx(0.2, abs=0.05)
    assert small.size.parameters == small.account.to_dict()["parameters"]
    lrcore.save(small, tmp_path / "small")
    back = lrcore.load(str(tmp_path / "small"))
    assert torch.equal(logits(back.network), logits(small.network))
    assert lrcore.generate(back, "Once upon", max_new_tokens=4) == lrcore.generate(
        small, "Once upon", max_new_tokens=4
    )
    with pytest.raises(InputError, match="more than this method can remove here; at most"):
        lrcore.compress(model, recipe.with_(ratio=0.99))
