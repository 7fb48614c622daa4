"""Export as a model with multi-head latent attention (MLA) that transformers has, a `youtu`: it
loads without any code of ours, and its cache holds latents.

Its attention caches one latent per token, of which the values are made, and one key, which is
rotated and which all heads share. So:

* The latent is that of the values. Where values have none, they are their own latent.
* The shared key holds the rotary pairs of all kv heads side by side. A query is zero but for the
  pairs of its own kv head, which leaves every score as it was. `longrope` is the rotary scaling
  that takes one factor per pair, and so any frequencies.
* Keys that are made of a latent cannot be rotated there after they are made: they are multiplied
  out, and cached whole.
* The latent goes through an RMSNorm. One more coordinate, a large constant held by a bias, makes
  that a multiplication by a number, which the matrix after it takes back. Biases of the values
  stand in the column of that coordinate.
* Queries that have biases are made of a latent in the same way, as wide as they are where they are
  no low-rank pair.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, YoutuConfig

from ..errors import InputError
from ..forms import dense
from ..layer import Attention, Layer, Linear, LowRank, Projection, heads, output_heads
from ..models.architectures import MULTIMODAL, architecture_of, decoder_layers, text_config
from ..models.layers import read_layer
from ..models.load import LoadedModel
from ..models.offload import present
from ..places import expanded
from .card import Usage, model_card
from .checkpoint import SHARD, write_companions, write_folder, write_weights
from .filling import filled_heads
from .paths import public_model
from .plain import FAMILIES, layer_misfit, network_misfit, window_of

CONSTANT = 2.0**12  # of the coordinate that holds the norm still
_ATTENTION = "self_attn"


@dataclass(frozen=True)
class MlaFolder:
    """A written folder.

    latent: numbers per token and layer of which values are made, the constant with them. rotary:
    those of the shared key. parameters: numbers in the file. kv_values: cached numbers per token.
    notes: what had to be done to the model, a clause each.
    """

    path: Path
    latent: int
    rotary: int
    parameters: int
    kv_values: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Sizes:
    """What all layers have there. slots: the original pair of every rotary pair of the key. query:
    numbers of the latent that queries are made of; 0 where they are made of the stream.
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
    """Write a model as a `youtu` of transformers, which needs no code of ours, and say what remains
    of its savings.

    results: measurements for the card. Layers with smaller latents, heads or MLPs than others are
    filled with zeros. In float32 the logits are the model's but for rounding.
    Raises InputError where a `youtu` has no place for something of the model. Folders are refused
    as by `save`.
    """
    public, network = public_model(model), model.network
    own = checked_layers(network)
    layers = _with_equal_heads(own)
    sizes = _sizes(layers)
    state = _state(network, layers, sizes)
    parameters = sum(tensor.numel() for tensor in state.values())
    cached = len(layers) * (sizes.latent + sizes.rotary)
    notes = [*_notes(own, sizes, cached)]
    if window := window_of(network):
        notes.append(f"the context is that of the sliding window, {window:,}")
    title = Path(folder).name if expanded(model.name).exists() else public.name

    def write(draft: Path) -> None:
        write_weights(state, draft, SHARD)
        _config(network, layers, sizes).save_pretrained(draft)
        write_companions(public, draft)
        usage = Usage(stock=True, lora=("all-linear",), notes=tuple(notes))
        card = model_card(title, public.folder, public.provenance, parameters, results, usage)
        (draft / "README.md").write_text(card, encoding="utf-8")

    path = write_folder(folder, overwrite, write)
    return MlaFolder(path, sizes.latent, sizes.rotary, parameters, cached, tuple(notes))


def checked_layers(network: PreTrainedModel) -> list[Layer]:
    """The layers. Raises InputError where one has no place in a `youtu`."""
    config = text_config(network)
    if config.model_type not in FAMILIES or network.config.model_type in MULTIMODAL:
        reason = f"it is of the family {network.config.model_type}, not {', '.join(FAMILIES)}"
        raise _refused(reason)
    if reason := network_misfit(network):
        raise _refused(reason)
    layers = []
    for index, module in enumerate(decoder_layers(network)):
        with present(module):
            layer = read_layer(network, index)
            if reason := layer_misfit(layer) or _bias(layer):
                raise _refused(f"in layer {index} {reason}")
            layers.append(layer)
    return layers


def _refused(reason: str) -> InputError:
    return InputError(
        f"This model is no youtu, the latent attention of transformers: {reason}. Export it with "
        "its code."
    )


def _bias(layer: Layer) -> str:
    """Which bias a youtu has no place for; "" where there is none."""
    m = layer.mlp
    assert m is not None  # refused before
    assert m.gate is not None
    return "the MLP has biases" if any(p.bias is not None for p in (m.gate, m.up, m.down)) else ""


def _with_equal_heads(layers: Sequence[Layer]) -> list[Layer]:
    """The layers with as many heads as the one with most has; those that are added are zeros."""
    most = max(layer.attention.n_kv for layer in layers)
    return [
        layer
        if layer.attention.n_kv == most
        else replace(layer, attention=filled_heads(layer.attention, most))
        for layer in layers
    ]


def _sizes(layers: Sequence[Layer]) -> _Sizes:
    most: dict[int, int] = {}
    for layer in layers:
        pairs = _pairs(layer.attention).flatten().tolist()
        most |= {pair: max(most.get(pair, 0), pairs.count(pair)) for pair in set(pairs)}
    return _Sizes(
        latent=1 + max(len(_values(layer.attention)[0]) for layer in layers),
        query=_query_latent(layers),
        slots=tuple(pair for pair in sorted(most) for _ in range(most[pair])),
        value=max(layer.attention.v_size for layer in layers),
        width=max(layer.mlp.up.weight.shape[0] for layer in layers if layer.mlp is not None),
    )


def _pairs(a: Attention) -> Tensor:
    """The original index of every rotary pair, [n_kv, qk_size / 2]."""
    if a.rotary_pairs is None:
        return torch.arange(a.qk_size // 2).expand(a.n_kv, -1)
    return a.rotary_pairs.long().cpu()


def _query_latent(layers: Sequence[Layer]) -> int:
    attentions = [layer.attention for layer in layers]
    biased = any(a.q.bias is not None for a in attentions)
    return 1 + max(len(_factors(a.q)[0]) for a in attentions) if biased else 0


def _values(a: Attention) -> tuple[Tensor, Tensor]:
    """The latent of the values, [r, d], and what makes the values of it, [n_kv * v_size, r]."""
    return _factors(a.v)


def _factors(p: Projection) -> tuple[Tensor, Tensor]:
    """A matrix [out, in] as a product, [r, in] and [out, r]; its own latent where it is no pair."""
    if isinstance(p, LowRank) and p.sparse is None and p.rank < p.up.shape[0]:
        return dense(p.down).cpu().double(), dense(p.up).cpu().double()
    weight = p.weight.cpu().double()
    return weight, torch.eye(len(weight), dtype=weight.dtype)


def _config(network: PreTrainedModel, layers: Sequence[Layer], sizes: _Sizes) -> YoutuConfig:
    """The config; the rotary frequencies are those of the original pairs."""
    own, a = text_config(network), layers[0].attention
    assert a.frequencies is not None  # refused before
    factors = [1 / float(a.frequencies[pair]) for pair in sizes.slots]
    context = min(own.max_position_embeddings, window_of(network) or math.inf)
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1.0,  # the factors say all
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": int(context),
        "short_factor": factors,
        "long_factor": factors,
    }
    embedding = network.get_input_embeddings()
    # no pad_token_id: a youtu sets that row of the embeddings to zero when it is loaded, and of a
    # tied head with it; the generation config has it
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
        **{name: getattr(own, name) for name in same},
    )
    config.architectures, config.dtype = ["YoutuForCausalLM"], network.dtype
    return config


def _state(network: PreTrainedModel, layers: Sequence[Layer], sizes: _Sizes) -> dict[str, Tensor]:
    """All weights by their names there; a tied head once."""
    row, dtype = architecture_of(network), network.dtype
    state: dict[str, Tensor] = {"model.embed_tokens.weight": network.get_input_embeddings().weight}
    for layer, module in zip(layers, decoder_layers(network), strict=True):
        with present(module):
            prefix = f"model.layers.{layer.index}"
            own: dict[str, Tensor] = {
                f"{norm}.weight": module.get_parameter(f"{norm}.weight") for norm in row.block_norms
            }
            before = own[f"{row.block_norms[0]}.weight"].cpu().double()
            own |= _attention(layer.attention, before, sizes) | _mlp(layer, sizes)
            state |= {f"{prefix}.{name}": tensor.to(dtype) for name, tensor in own.items()}
    state["model.norm.weight"] = network.get_parameter(f"{row.last_norm}.weight")
    if not text_config(network).tie_word_embeddings:
        state["lm_head.weight"] = network.get_output_embeddings().weight
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def _attention(a: Attention, norm: Tensor, sizes: _Sizes) -> dict[str, Tensor]:
    """The attention's tensors, float64. norm [d]: weight of the norm before it."""
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
    """A projection by a latent [r] that a norm stands after: down [r, d] with the bias `held` [r],
    scales [r] of the norm, up [out, r]. Its last number is the constant, in whose column the bias
    of the projection stands.
    """

    down: Tensor
    held: Tensor
    scales: Tensor
    up: Tensor


def _through_norm(p: Projection, norm: Tensor, latent: int) -> _Latent:
    """norm [d]: weight of the norm before it. latent: its numbers, unused ones are zero."""
    down, up = _factors(p)
    # Of a normalised input the latent is about 1 long, and the constant outweighs it. All factors
    # that bfloat16 would round are in `up`.
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
    """The tensors that make the queries, by a latent where some layer's have biases."""
    if not sizes.query:
        return {"q_proj.weight": _queries(a, a.q.weight.cpu().double(), sizes)}
    queries = _through_norm(a.q, norm, sizes.query)
    return {
        "q_a_proj.weight": queries.down,
        "q_a_proj.bias": queries.held,
        "q_a_layernorm.weight": queries.scales,
        "q_b_proj.weight": _queries(a, queries.up, sizes),
    }


def _places(a: Attention, sizes: _Sizes) -> Tensor:
    """The row in the shared key of every row of every kv head, [n_kv, qk_size]."""
    free = {pair: iter([s for s, p in enumerate(sizes.slots) if p == pair]) for pair in sizes.slots}
    slots = torch.tensor([[next(free[pair]) for pair in own] for own in _pairs(a).tolist()])
    return torch.cat((slots, slots + len(sizes.slots)), dim=1)


def _keys(a: Attention, sizes: _Sizes) -> tuple[Tensor, Tensor]:
    """The shared key's weight [rotary, d] and bias [rotary], float64."""
    places, weight = _places(a, sizes).flatten(), a.k.weight.cpu().double()
    keys, bias = weight.new_zeros(sizes.rotary, weight.shape[1]), weight.new_zeros(sizes.rotary)
    keys[places] = weight
    if a.k.bias is not None:
        bias[places] = a.k.bias.cpu().double()
    return keys, bias


def _queries(a: Attention, weight: Tensor, sizes: _Sizes) -> Tensor:
    """Rows of queries, [n_q * qk_size, c], as those there, [n_q * rotary, c]: zero where other kv
    heads have their pairs.
    """
    own = heads(weight, a.n_q)
    queries = own.new_zeros(a.n_q, sizes.rotary, own.shape[-1])
    for head, rows in enumerate(_places(a, sizes).repeat_interleave(a.group, dim=0)):
        queries[head, rows] = own[head]
    return queries.flatten(0, 1) * (a.scale * math.sqrt(sizes.rotary))


def _mlp(layer: Layer, sizes: _Sizes) -> dict[str, Tensor]:
    """The MLP's matrices, multiplied out, with zeros up to the common width."""
    m = layer.mlp
    assert m is not None  # refused before
    assert m.gate is not None
    rows = (0, 0, 0, sizes.width - m.up.weight.shape[0])
    columns = (0, rows[-1])
    named = {
        name: torch.nn.functional.pad(p.weight.cpu(), columns if name == "down" else rows)
        for name, p in {"gate": m.gate, "up": m.up, "down": m.down}.items()
    }
    return {f"mlp.{name}_proj.weight": weight for name, weight in named.items()}


def _notes(layers: Sequence[Layer], sizes: _Sizes, cached: int) -> Iterator[str]:
    """What was done to a model, and what of its savings is lost with it."""
    latent = "qv" if sizes.query else "v"
    kept = [p for layer in layers for name, p in layer.matrices().items() if name not in latent]
    if factored := sum(not isinstance(p, Linear) for p in kept):
        yield f"{factored} low-rank or quantised matrices were multiplied out"
    if sizes.query:
        yield f"queries are made of latents of {sizes.query} numbers, for their biases"
    whole = sum(layer.attention.cached_latent("k") is not None for layer in layers)
    if whole:
        yield f"the keys of {whole} layers are cached whole"
    heads_of = [layer.attention.n_kv for layer in layers]
    if fewer := sum(count < max(heads_of) for count in heads_of):
        yield f"{fewer} layers have heads of zeros, up to {max(heads_of)} of keys and values"
    if len({len(_values(layer.attention)[0]) for layer in layers}) > 1:
        yield f"latents were filled with zeros to the largest, {sizes.latent - 1}"
    if len({layer.mlp.up.weight.shape[0] for layer in layers if layer.mlp is not None}) > 1:
        yield f"MLPs were filled with zeros to the widest, {sizes.width}"
    if (own := sum(layer.attention.kv_values for layer in layers)) != cached:
        yield f"the cache holds {cached:,} numbers per token instead of {own:,}"
