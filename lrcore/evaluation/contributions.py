"""The loss from compressing each component alone and all of them together (A3, Table 11)."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError
from ..layer import Layer
from ..methods.heads import groups_left, of_groups
from ..models.architectures import decoder_layers, text_config
from ..models.layers import clone, read_layer, write_layer
from ..models.load import LoadedModel
from ..models.structure import sliced_modules
from ..progress import Progress, silent
from .compare import check_tokens
from .evaluate import row_losses, summarise
from .protocols import make_passages
from .settings import EvaluationSettings

PARTS = (("qk",), ("ov",), ("mlp",), ("qk", "ov"), ("qk", "ov", "mlp"))


@dataclass(frozen=True)
class Contributions:
    """The loss by compressed components.

    rows: parts ("qk", "ov", "mlp", "qk + ov", "qk, ov", "all"), perplexity, delta_perplexity and
    delta_nll against the dense model. "qk + ov" is the sum of the rows "qk" and "ov"; "qk, ov" is
    measured with both compressed.
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
    """Perplexity of the dense model with only some components taken from the compressed one.

    data, settings: as in `evaluate`; 32 samples where a data set is given without `samples`.
    Raises InputError as `compare` does, and where `small` is no compressed `dense`.
    """
    progress, total = progress or silent, len(PARTS) + 1
    passages = make_passages(dense, EvaluationSettings.of(data, settings, samples=32), small)
    check_tokens(dense, small, passages.rows)
    check_same(dense, small)
    evaluations = []
    for done, parts in enumerate(((), *PARTS)):
        progress("contributions", done, total)
        model = mixed(dense, small, parts)
        losses = [part.double() for _, part in row_losses(model, passages.rows)]
        evaluations.append(summarise(model, passages, losses, 0.0))
    progress("contributions", total, total)
    base, *others = evaluations
    names = ["qk", "ov", "mlp", "qk, ov", "all"]
    rows: list[dict[str, Any]] = [
        {
            "parts": name,
            "perplexity": one.perplexity,
            "delta_perplexity": one.perplexity - base.perplexity,
            "delta_nll": one.nll - base.nll,
        }
        for name, one in zip(names, others, strict=True)
    ]
    added = {key: rows[0][key] + rows[1][key] for key in ("delta_perplexity", "delta_nll")}
    rows.insert(
        3, {"parts": "qk + ov", "perplexity": base.perplexity + added["delta_perplexity"], **added}
    )
    return Contributions(rows, base.perplexity, base.protocol | passages.described(small))


def mixed(dense: LoadedModel, small: LoadedModel, parts: Collection[str]) -> LoadedModel:
    """The dense model with some components ("qk", "ov", "mlp") of the compressed one.

    Tensors are shared with both. Heads that were removed whole are missing from QK and OV alike.
    """
    network = clone(dense.network)
    for index in range(len(decoder_layers(network))):
        own, other = read_layer(network, index), read_layer(small.network, index)
        write_layer(network, _mixed_layer(own, other, parts))
    return replace(dense, name=f"{dense.name} + {', '.join(parts)}", network=network)


def _mixed_layer(dense: Layer, small: Layer, parts: Collection[str]) -> Layer:
    attention, other = dense.attention, small.attention
    if attention.factors is not None:
        own = {"qk": ("q", "q_a", "q_b", "k"), "ov": ("kv_a", "kv_b", "v", "o")}
        names = {name for part in {*own} & {*parts} for name in own[part]}
        changed = {name: p for name, p in other.named.items() if name in names}
        attention, other = attention.with_named(changed), attention
        parts = {*parts} - {"qk", "ov"}
    if attention.n_kv > other.n_kv and {"qk", "ov"} & set(parts):
        attention = of_groups(attention, groups_left(attention, other))
    if "qk" in parts:
        sizes = {
            name: getattr(other, name) for name in ("qk_size", "rotary_pairs", "latent", "channel")
        }
        attention = replace(attention, q=other.q, k=other.k, **sizes)
    if "ov" in parts:
        sizes = {name: getattr(other, name) for name in ("v_size", "summed")}
        attention = replace(attention, v=other.v, o=other.o, **sizes)
    mlps = small if "mlp" in parts else dense
    return replace(dense, attention=attention, mlp=mlps.mlp, experts=mlps.experts)


def check_same(dense: LoadedModel, small: LoadedModel) -> None:
    """Check that `small` has the same layers as `dense`.

    Raises InputError where family, layers, hidden size or slicing differ.
    """
    configs = [text_config(model.network) for model in (dense, small)]
    shapes = {(c.model_type, c.num_hidden_layers, c.hidden_size) for c in configs}
    sliced = {bool(sliced_modules(model.network)) for model in (dense, small)}
    if len(shapes) > 1 or len(sliced) > 1:
        raise InputError(f"'{small.name}' is not a compressed '{dense.name}': their layers differ.")
