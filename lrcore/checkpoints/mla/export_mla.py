"""Export as `youtu`, a model of transformers with multi-head latent attention (MLA).

It loads without custom code, and the cache holds latents. Attention caches a latent per token,
from which the values are computed, and a rotated key, which all heads share. The export maps a
compressed attention to it as follows:

* The latent is the latent of the values. Values without a latent are their own latent.
* The shared key contains the rotary pairs of all kv heads. A query is zero except for the pairs of
  its kv head, so that all scores stay the same. The rotary scaling `longrope` has a factor per
  pair, so it can represent any frequencies.
* A `youtu` has no latent for rotated keys. The factors of low-rank keys are multiplied out, and the
  complete rotated keys are cached.
* The latent passes through an RMSNorm. A bias adds a coordinate to the latent that is a large
  constant. The constant dominates the norm, so the norm divides by a known number, and the
  following matrix multiplies by that number again. The column of the constant in that matrix
  contains the biases of the values.
* Queries with biases are computed from a latent in the same way. If the queries are not a low-rank
  pair, the latent is as wide as the queries.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, YoutuConfig

from ...layers.forms import dense
from ...layers.layer import Attention, Layer, Linear, LowRank, Projection, heads, output_heads
from ...models.architectures import MULTIMODAL, architecture_of, decoder_layers, text_config
from ...models.layers import read_layer
from ...models.load import LoadedModel
from ...models.offload import present
from ...system.errors import InputError
from ...system.path_access import expanded
from ..card import ExportUsage, model_card
from ..checkpoint import SHARD, write_companions, write_folder, write_weights
from ..padding import pad_heads
from ..paths import public_model
from ..unsupported import FAMILIES, sliding_window, unsupported_layer, unsupported_network

CONSTANT = 2.0**12  # additional coordinate that fixes the norm
_ATTENTION = "self_attn"


@dataclass(frozen=True)
class MlaFolder:
    """A written folder.

    latent: numbers per token and layer from which values are computed, including the constant.
    rotary: numbers of the shared key. parameters: numbers in the file. kv_values: cached numbers
    per token. notes: changes of the model by the export.
    """

    path: Path
    latent: int
    rotary: int
    parameters: int
    kv_values: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Sizes:
    """Sizes that all layers of the export have.

    slots: original index of each rotary pair of the key. query: numbers of the queries' latent; 0
    if queries are computed without a latent.
    """

    latent: int
    query: int
    slots: tuple[int, ...]
    value: int
    width: int

    @property
    def rotary(self) -> int:
        return 2 * len(self.slots)


def export_mla(
    model: LoadedModel,
    folder: str | Path,
    results: Sequence[Mapping[str, Any]] = (),
    overwrite: bool = False,
) -> MlaFolder:
    """Write a model as a `youtu` of transformers, which needs no custom code.

    Layers with smaller latents, heads or MLPs are padded with zeros. In float32 the logits are
    those of the model up to rounding.

    results: evaluations for the card. Raises InputError if a `youtu` does not support a structure
    of the model, and for the same folders as `save`.
    """
    public, network = public_model(model), model.network
    originals = checked_layers(network)
    layers = _with_equal_heads(originals)
    sizes = _sizes(layers)
    state = _state(network, layers, sizes)
    parameters = sum(tensor.numel() for tensor in state.values())
    cached = len(layers) * (sizes.latent + sizes.rotary)
    notes = [*_notes(originals, sizes, cached)]
    if window := sliding_window(network):
        notes.append(f"the context is limited to the sliding window, {window:,}")
    title = Path(folder).name if expanded(model.name).exists() else public.name

    def write(draft: Path) -> None:
        write_weights(state, draft, SHARD)
        _config(network, layers, sizes).save_pretrained(draft)
        write_companions(public, draft)
        lora = ("all-linear",)
        usage = ExportUsage(standard=True, lora=lora, notes=tuple(notes), note=public.note)
        card = model_card(title, public.folder, public.provenance, parameters, results, usage)
        (draft / "README.md").write_text(card, encoding="utf-8")

    path = write_folder(folder, overwrite, write)
    return MlaFolder(path, sizes.latent, sizes.rotary, parameters, cached, tuple(notes))


def checked_layers(network: PreTrainedModel) -> list[Layer]:
    """Return the layers. Raises InputError if a `youtu` does not support one of them."""
    config = text_config(network)
    if config.model_type not in FAMILIES or network.config.model_type in MULTIMODAL:
        reason = f"its family is {network.config.model_type}, not {', '.join(FAMILIES)}"
        raise _refused(reason)
    if reason := unsupported_network(network):
        raise _refused(reason)
    layers = []
    for index, module in enumerate(decoder_layers(network)):
        with present(module):
            layer = read_layer(network, index)
            if reason := unsupported_layer(layer) or _bias(layer):
                raise _refused(f"in layer {index} {reason}")
            layers.append(layer)
    return layers


def _refused(reason: str) -> InputError:
    return InputError(
        f"This model cannot be a youtu (latent attention of transformers): {reason}. Export it "
        "with custom code."
    )


def _bias(layer: Layer) -> str:
    """Return a description of biases that a youtu does not support, or ""."""
    m = layer.mlp
    assert m is not None  # checked before
    assert m.gate is not None
    return "the MLP has biases" if any(p.bias is not None for p in (m.gate, m.up, m.down)) else ""


def _with_equal_heads(layers: Sequence[Layer]) -> list[Layer]:
    """Pad all layers with zero heads to the largest number of heads."""
    kv_heads = max(layer.attention.n_kv for layer in layers)
    return [
        layer
        if layer.attention.n_kv == kv_heads
        else replace(layer, attention=pad_heads(layer.attention, kv_heads))
        for layer in layers
    ]


def _sizes(layers: Sequence[Layer]) -> _Sizes:
    counts: dict[int, int] = {}
    for layer in layers:
        pairs = _pairs(layer.attention).flatten().tolist()
        counts |= {pair: max(counts.get(pair, 0), pairs.count(pair)) for pair in set(pairs)}
    return _Sizes(
        latent=1 + max(len(_values(layer.attention)[0]) for layer in layers),
        query=_query_latent(layers),
        slots=tuple(pair for pair in sorted(counts) for _ in range(counts[pair])),
        value=max(layer.attention.v_size for layer in layers),
        width=max(layer.mlp.up.weight.shape[0] for layer in layers if layer.mlp is not None),
    )


def _pairs(a: Attention) -> Tensor:
    """Return the original index of each rotary pair, [n_kv, qk_size / 2]."""
    if a.rotary_pairs is None:
        return torch.arange(a.qk_size // 2).expand(a.n_kv, -1)
    return a.rotary_pairs.long().cpu()


def _query_latent(layers: Sequence[Layer]) -> int:
    attentions = [layer.attention for layer in layers]
    biased = any(a.q.bias is not None for a in attentions)
    return 1 + max(len(_factors(a.q)[0]) for a in attentions) if biased else 0


def _values(a: Attention) -> tuple[Tensor, Tensor]:
    """Return the latent of the values [r, d] and its expansion to values [n_kv * v_size, r]."""
    return _factors(a.v)


def _factors(p: Projection) -> tuple[Tensor, Tensor]:
    """Return a matrix [out, in] as factors [r, in] and [out, r]; a full matrix with an identity."""
    if isinstance(p, LowRank) and p.sparse is None and p.rank < p.up.shape[0]:
        return dense(p.down).cpu().double(), dense(p.up).cpu().double()
    weight = p.weight.cpu().double()
    return weight, torch.eye(len(weight), dtype=weight.dtype)


def _config(network: PreTrainedModel, layers: Sequence[Layer], sizes: _Sizes) -> YoutuConfig:
    """Return the config; its rotary frequencies are those of the original pairs."""
    text, a = text_config(network), layers[0].attention
    assert a.frequencies is not None  # checked before
    factors = [1 / float(a.frequencies[pair]) for pair in sizes.slots]
    context = min(text.max_position_embeddings, sliding_window(network) or math.inf)
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1.0,  # the factors contain the frequencies
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": int(context),
        "short_factor": factors,
        "long_factor": factors,
    }
    embedding = network.get_input_embeddings()
    # pad_token_id is omitted: loading a youtu zeroes that row of the embeddings, and thereby of a
    # tied head. The generation config has it.
    same = ("rms_norm_eps", "tie_word_embeddings", "bos_token_id", "eos_token_id")
    config = YoutuConfig(
        vocab_size=embedding.num_embeddings,
        hidden_size=embedding.embedding_dim,
        intermediate_size=sizes.width,
        num_hidden_layers=len(layers),
        num_attention_heads=a.n_q,
        num_key_value_heads=a.n_q,
        kv_lora_rank=sizes.latent,
        q_lora_rank=sizes.query or None,
        qk_rope_head_dim=sizes.rotary,
        qk_nope_head_dim=0,
        v_head_dim=sizes.value,
        max_position_embeddings=int(context),
        rope_parameters=rope,
        rope_interleave=False,
        attention_bias=True,
        **{name: getattr(text, name) for name in same},
    )
    config.architectures, config.dtype = ["YoutuForCausalLM"], network.dtype
    return config


def _state(network: PreTrainedModel, layers: Sequence[Layer], sizes: _Sizes) -> dict[str, Tensor]:
    """Return all weights by their names in a youtu; a tied head once."""
    row, dtype = architecture_of(network), network.dtype
    state: dict[str, Tensor] = {"model.embed_tokens.weight": network.get_input_embeddings().weight}
    for layer, module in zip(layers, decoder_layers(network), strict=True):
        with present(module):
            prefix = f"model.layers.{layer.index}"
            tensors: dict[str, Tensor] = {
                f"{norm}.weight": module.get_parameter(f"{norm}.weight") for norm in row.block_norms
            }
            before = tensors[f"{row.block_norms[0]}.weight"].cpu().double()
            tensors |= _attention(layer.attention, before, sizes) | _mlp(layer, sizes)
            state |= {f"{prefix}.{name}": tensor.to(dtype) for name, tensor in tensors.items()}
    state["model.norm.weight"] = network.get_parameter(f"{row.last_norm}.weight")
    if not text_config(network).tie_word_embeddings:
        state["lm_head.weight"] = network.get_output_embeddings().weight
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def _attention(a: Attention, norm: Tensor, sizes: _Sizes) -> dict[str, Tensor]:
    """Return the attention's tensors, float64. norm [d]: weight of the norm before it."""
    values = _through_norm(a.v, norm, sizes.latent)
    expand = values.up.new_zeros(a.n_kv, sizes.value, sizes.latent)
    expand[:, : a.v_size] = heads(values.up, a.n_kv)
    keys, key_bias = _keys(a, sizes)
    outputs = output_heads(a.o.weight.cpu().double(), a.n_q)
    outputs = torch.nn.functional.pad(outputs, (0, sizes.value - a.v_size))
    o_bias = a.o.weight.new_zeros(len(a.o.weight)) if a.o.bias is None else a.o.bias
    named = {
        **_query_tensors(a, norm, sizes),
        "kv_a_proj_with_mqa.weight": torch.cat((values.down, keys)),
        "kv_a_proj_with_mqa.bias": torch.cat((values.held, key_bias)),
        "kv_a_layernorm.weight": values.scales,
        "kv_b_proj.weight": expand.repeat_interleave(a.group, dim=0).flatten(0, 1),
        "o_proj.weight": outputs.transpose(0, 1).reshape(outputs.shape[1], -1),
        "o_proj.bias": o_bias.cpu(),
    }
    return {f"{_ATTENTION}.{name}": tensor for name, tensor in named.items()}


@dataclass(frozen=True)
class _Latent:
    """A projection through a latent [r] with a norm.

    down [r, d] with the bias `held` [r]; scales [r] of the norm; up [out, r]. The last coordinate
    is the constant; its column in `up` contains the bias of the projection.
    """

    down: Tensor
    held: Tensor
    scales: Tensor
    up: Tensor


def _through_norm(p: Projection, norm: Tensor, latent: int) -> _Latent:
    """Return a projection computed from a latent with a constant coordinate.

    norm [d]: weight of the norm before the projection. latent: size of the latent, including the
    constant; smaller latents are padded with zeros.
    """
    down, up = _factors(p)
    # `size` scales the latent of a normalized input to a norm of about 1, much smaller than the
    # constant. Down and norm are scaled by powers of two, which bfloat16 does not round; all other
    # factors go into `up`.
    size = 2.0 ** round(math.log2(float((down * norm).norm()) or 1.0))
    exact = CONSTANT / math.sqrt(latent)
    weight = 2.0 ** round(math.log2(exact))
    first, held = down.new_zeros(latent, down.shape[1]), down.new_zeros(latent)
    first[: len(down)] = down / size
    second = up.new_zeros(len(up), latent)
    second[:, : len(down)] = up * (size * exact / weight)
    if p.bias is not None:
        second[:, -1] = p.bias.cpu().double() / math.sqrt(latent)
    scales = torch.full((latent,), weight, dtype=down.dtype)
    held[-1], scales[-1] = CONSTANT, 1.0
    return _Latent(first, held, scales, second)


def _query_tensors(a: Attention, norm: Tensor, sizes: _Sizes) -> dict[str, Tensor]:
    """Return the query tensors, with a latent if queries of some layer have biases."""
    if not sizes.query:
        return {"q_proj.weight": _queries(a, a.q.weight.cpu().double(), sizes)}
    queries = _through_norm(a.q, norm, sizes.query)
    return {
        "q_a_proj.weight": queries.down,
        "q_a_proj.bias": queries.held,
        "q_a_layernorm.weight": queries.scales,
        "q_b_proj.weight": _queries(a, queries.up, sizes),
    }


def _rows_in_key(a: Attention, sizes: _Sizes) -> Tensor:
    """Return the row in the shared key for each row of each kv head, [n_kv, qk_size]."""
    free = {pair: iter([s for s, p in enumerate(sizes.slots) if p == pair]) for pair in sizes.slots}
    slots = torch.tensor([[next(free[pair]) for pair in pairs] for pairs in _pairs(a).tolist()])
    return torch.cat((slots, slots + len(sizes.slots)), dim=1)


def _keys(a: Attention, sizes: _Sizes) -> tuple[Tensor, Tensor]:
    """Return weight [rotary, d] and bias [rotary] of the shared key, float64."""
    rows, weight = _rows_in_key(a, sizes).flatten(), a.k.weight.cpu().double()
    keys, bias = weight.new_zeros(sizes.rotary, weight.shape[1]), weight.new_zeros(sizes.rotary)
    keys[rows] = weight
    if a.k.bias is not None:
        bias[rows] = a.k.bias.cpu().double()
    return keys, bias


def _queries(a: Attention, weight: Tensor, sizes: _Sizes) -> Tensor:
    """Expand rows of queries, [n_q * qk_size, c], to [n_q * rotary, c], with zeros at the pairs of
    other kv heads.
    """
    of_head = heads(weight, a.n_q)
    queries = of_head.new_zeros(a.n_q, sizes.rotary, of_head.shape[-1])
    for head, rows in enumerate(_rows_in_key(a, sizes).repeat_interleave(a.group, dim=0)):
        queries[head, rows] = of_head[head]
    return queries.flatten(0, 1) * (a.scale * math.sqrt(sizes.rotary))


def _mlp(layer: Layer, sizes: _Sizes) -> dict[str, Tensor]:
    """Return the MLP's matrices, multiplied out and padded with zeros to the common width."""
    m = layer.mlp
    assert m is not None  # checked before
    assert m.gate is not None
    rows = (0, 0, 0, sizes.width - m.up.weight.shape[0])
    columns = (0, rows[-1])
    named = {
        name: torch.nn.functional.pad(p.weight.cpu(), columns if name == "down" else rows)
        for name, p in {"gate": m.gate, "up": m.up, "down": m.down}.items()
    }
    return {f"mlp.{name}_proj.weight": weight for name, weight in named.items()}


def _notes(layers: Sequence[Layer], sizes: _Sizes, cached: int) -> Iterator[str]:
    """Describe the changes of the model, and the savings that they lose."""
    latent = "qv" if sizes.query else "v"
    dense = [p for layer in layers for name, p in layer.matrices().items() if name not in latent]
    if factored := sum(not isinstance(p, Linear) for p in dense):
        yield f"{factored} low-rank or quantized matrices were multiplied out"
    if sizes.query:
        yield f"queries are computed from latents of {sizes.query} numbers because of their biases"
    full_keys = sum(layer.attention.cached_latent("k") is not None for layer in layers)
    if full_keys:
        yield f"the keys of {full_keys} layers are cached completely"
    heads_of = [layer.attention.n_kv for layer in layers]
    if fewer := sum(count < max(heads_of) for count in heads_of):
        yield f"{fewer} layers have heads of zeros, up to {max(heads_of)} of keys and values"
    if len({len(_values(layer.attention)[0]) for layer in layers}) > 1:
        yield f"latents were padded with zeros to the largest, {sizes.latent - 1}"
    if len({layer.mlp.up.weight.shape[0] for layer in layers if layer.mlp is not None}) > 1:
        yield f"MLPs were padded with zeros to the widest, {sizes.width}"
    if (before := sum(layer.attention.kv_values for layer in layers)) != cached:
        yield f"the cache holds {cached:,} numbers per token instead of {before:,}"
