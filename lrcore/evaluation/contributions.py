"""Losses of a model with only some components compressed (A3, Table 11)."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ..layers.layer import Layer
from ..methods.heads import remaining_groups, select_groups
from ..models.architectures import decoder_layers, text_config
from ..models.layers import clone, read_layer, write_layer
from ..models.load import LoadedModel
from ..models.structure import sliced_modules
from ..system.errors import InputError
from ..system.progress import Progress, silent
from .compare import check_tokens
from .evaluate import row_losses, summarize
from .evaluation_settings import EvaluationSettings
from .protocols import make_passages

PARTS = (("qk",), ("ov",), ("mlp",), ("qk", "ov"), ("qk", "ov", "mlp"))


@dataclass(frozen=True)
class Contributions:
    """Losses by compressed components.

    rows: parts ("qk", "ov", "mlp", "qk + ov", "qk, ov", "all"), perplexity, delta_perplexity and
    delta_nll, both relative to the dense model. "qk + ov" is the sum of the rows "qk" and "ov";
    "qk, ov" is measured with both components compressed.
    """

    rows: list[dict[str, Any]]
    dense_perplexity: float
    protocol: dict[str, Any]


def contributions(
    dense: LoadedModel,
    small: LoadedModel,
    data: str | EvaluationSettings,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> Contributions:
    """Return the perplexity of the dense model with some components of the compressed model.

    data, settings: as in `evaluate`; the default for `samples` is 32.
    Raises InputError like `compare`, and if `small` is not a compressed `dense`.
    """
    progress, total = progress or silent, len(PARTS) + 1
    passages = make_passages(dense, EvaluationSettings.of(data, settings, samples=32), small)
    check_tokens(dense, small, passages.rows)
    check_same_layers(dense, small)
    evaluations = []
    for index, parts in enumerate(((), *PARTS)):
        progress("contributions", index, total)
        model = mix_models(dense, small, parts)
        losses = [part.double() for _, part in row_losses(model, passages.rows)]
        evaluations.append(summarize(model, passages, losses, 0.0))
    progress("contributions", total, total)
    base, *compressed = evaluations
    names = ["qk", "ov", "mlp", "qk, ov", "all"]
    rows: list[dict[str, Any]] = [
        {
            "parts": name,
            "perplexity": evaluation.perplexity,
            "delta_perplexity": evaluation.perplexity - base.perplexity,
            "delta_nll": evaluation.nll - base.nll,
        }
        for name, evaluation in zip(names, compressed, strict=True)
    ]
    sums = {key: rows[0][key] + rows[1][key] for key in ("delta_perplexity", "delta_nll")}
    rows.insert(
        3, {"parts": "qk + ov", "perplexity": base.perplexity + sums["delta_perplexity"], **sums}
    )
    return Contributions(rows, base.perplexity, base.protocol | passages.protocol_for(small))


def mix_models(dense: LoadedModel, small: LoadedModel, parts: Collection[str]) -> LoadedModel:
    """Return the dense model with some components ("qk", "ov", "mlp") of the compressed model.

    Tensors are shared with both models. Heads that `small` lacks are removed from QK and from OV.
    """
    network = clone(dense.network)
    for index in range(len(decoder_layers(network))):
        dense_layer, small_layer = read_layer(network, index), read_layer(small.network, index)
        write_layer(network, _mixed_layer(dense_layer, small_layer, parts))
    return replace(dense, name=f"{dense.name} + {', '.join(parts)}", network=network)


def _mixed_layer(dense: Layer, small: Layer, parts: Collection[str]) -> Layer:
    """Return the dense layer with some components of the compressed layer."""
    attention, small_attention = dense.attention, small.attention
    if attention.factors is not None:
        of_queries_and_keys = ("q", "q_a", "q_b", "k")
        changed = {
            name: p
            for name, p in small_attention.projections.items()
            if ("qk" if name in of_queries_and_keys else "ov") in parts
        }
        # No head is removed from factored attention: only projections change.
        attention, small_attention = attention.with_projections(changed), attention
        parts = {*parts} - {"qk", "ov"}
    if attention.n_kv > small_attention.n_kv and {"qk", "ov"} & set(parts):
        attention = select_groups(attention, remaining_groups(attention, small_attention))
    if "qk" in parts:
        sizes = {
            name: getattr(small_attention, name)
            for name in ("qk_size", "rotary_pairs", "latent", "channel")
        }
        attention = replace(attention, q=small_attention.q, k=small_attention.k, **sizes)
    if "ov" in parts:
        sizes = {name: getattr(small_attention, name) for name in ("v_size", "summed")}
        attention = replace(attention, v=small_attention.v, o=small_attention.o, **sizes)
    mlps = small if "mlp" in parts else dense
    return replace(dense, attention=attention, mlp=mlps.mlp, experts=mlps.experts)


def check_same_layers(dense: LoadedModel, small: LoadedModel) -> None:
    """Check that `small` has the same layers as `dense`.

    Raises InputError if model type, number of layers, hidden size or slicing differ.
    """
    configs = [text_config(model.network) for model in (dense, small)]
    shapes = {(c.model_type, c.num_hidden_layers, c.hidden_size) for c in configs}
    sliced = {bool(sliced_modules(model.network)) for model in (dense, small)}
    if len(shapes) > 1 or len(sliced) > 1:
        raise InputError(
            f"'{small.name}' is not a compressed version of '{dense.name}': the layers differ."
        )
