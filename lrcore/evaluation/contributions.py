"""What each component's compression costs alone, and all of them together (A3, Table 11), for
any compressed model.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError
from ..layer import Layer
from ..models.architectures import decoder_layers, text_config
from ..models.layers import clone, read_layer, write_layer
from ..models.load import LoadedModel
from ..models.structure import sliced_modules
from ..progress import Progress, silent
from .compare import check_tokens
from .evaluate import row_losses, summarise
from .protocols import EvaluationSettings, make_passages

PARTS = (("qk",), ("ov",), ("mlp",), ("qk", "ov"), ("qk", "ov", "mlp"))


@dataclass(frozen=True)
class Contributions:
    """rows: parts ("qk", "ov", "mlp", "qk + ov", "qk, ov", "all"), perplexity, delta_perplexity and
    delta_nll against the dense model.

    "qk + ov" adds up the two rows of one component each; "qk, ov" was measured with both compressed
    at once.
    """

    rows: list[dict[str, Any]]
    dense_perplexity: float
    protocol: dict[str, Any]


def contributions(
    dense: LoadedModel,
    small: LoadedModel,
    data: str,
    samples: int | None = 32,
    seq_len: int | None = None,
    protocol: str = "windows",
    progress: Progress | None = None,
) -> Contributions:
    """Perplexity of the dense model with only some components taken from the compressed one.

    The arguments are those of `evaluate`.

    Raises InputError where the two are not one model, dense and compressed.
    """
    progress, total = progress or silent, len(PARTS) + 1
    passages = make_passages(dense, EvaluationSettings(data, samples, seq_len, protocol=protocol))
    check_tokens(dense, small, passages.rows)
    check_same(dense, small)
    measured = []
    for done, parts in enumerate(((), *PARTS)):
        progress("contributions", done, total)
        model = mixed(dense, small, parts)
        measured.append(
            summarise(
                model,
                passages,
                [losses.double() for _, losses in row_losses(model, passages.rows)],
                0.0,
            )
        )
    progress("contributions", total, total)
    base, *found = measured
    names = ["qk", "ov", "mlp", "qk, ov", "all"]
    rows = [
        {
            "parts": name,
            "perplexity": one.perplexity,
            "delta_perplexity": one.perplexity - base.perplexity,
            "delta_nll": one.nll - base.nll,
        }
        for name, one in zip(names, found, strict=True)
    ]
    added = {key: rows[0][key] + rows[1][key] for key in ("delta_perplexity", "delta_nll")}
    rows.insert(
        3, {"parts": "qk + ov", "perplexity": base.perplexity + added["delta_perplexity"], **added}
    )
    return Contributions(rows, base.perplexity, base.protocol)


def mixed(dense: LoadedModel, small: LoadedModel, parts: Collection[str]) -> LoadedModel:
    """The dense model with the components named ("qk", "ov", "mlp") as they are in the
    compressed one; tensors are shared.
    """
    network = clone(dense.network)
    for index in range(len(decoder_layers(network))):
        write_layer(
            network,
            _mixed_layer(read_layer(network, index), read_layer(small.network, index), parts),
        )
    return replace(dense, name=f"{dense.name} + {', '.join(parts)}", network=network)


def _mixed_layer(dense: Layer, small: Layer, parts: Collection[str]) -> Layer:
    attention, other = dense.attention, small.attention
    if "qk" in parts:
        sizes = {
            name: getattr(other, name) for name in ("qk_size", "rotary_pairs", "latent", "channel")
        }
        attention = replace(attention, q=other.q, k=other.k, **sizes)
    if "ov" in parts:
        attention = replace(attention, v=other.v, o=other.o, v_size=other.v_size)
    return replace(dense, attention=attention, mlp=small.mlp if "mlp" in parts else dense.mlp)


def check_same(dense: LoadedModel, small: LoadedModel) -> None:
    """Raise InputError where the two are not one model, dense and compressed, layer for layer."""
    configs = [text_config(model.network) for model in (dense, small)]
    sliced = {bool(sliced_modules(model.network)) for model in (dense, small)}
    if (
        len(
            {
                (config.model_type, config.num_hidden_layers, config.hidden_size)
                for config in configs
            }
        )
        > 1
        or len(sliced) > 1
    ):
        raise InputError(
            f"'{dense.name}' and '{small.name}' are not one model, dense and compressed: their "
            "layers are others."
        )
