"""Models that a step derives from another model: identity, account, and rewritten matrices."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...layers.account import SizeAndCost
from ...layers.layer import Layer, Projection
from ...layers.rewriting import Rewrite, once_each, rewrite_projection
from ...layers.statistics import TAPS, Moments
from ...models.architectures import decoder_layers
from ...models.layers import clone, read_exact, write_layer
from ...models.load import LoadedModel
from ...models.model_size import count_account
from ...models.stream import LayerStream
from ...recipes.provenance import BaseModel
from ...system.as_json import json_text
from ...system.progress import Progress


def derive_model(
    model: LoadedModel, name: str, network: PreTrainedModel, identity: Sequence[Any]
) -> LoadedModel:
    """Return the model of another network, derived from `model`.

    identity: JSON-able description of the step; the fingerprint follows from it and from that of
    `model`. The base is the base of `model`, or `model` itself. History and account are those of
    `model`; the caller replaces them.
    """
    serialized = json_text([model.fingerprint, *identity], sort_keys=True)
    return replace(
        model,
        name=name,
        network=network,
        fingerprint=hashlib.sha256(serialized.encode()).hexdigest(),
        base=model.base or BaseModel(model.name, model.fingerprint),
    )


def compare_size(model: LoadedModel, derived: LoadedModel, context: int = 256) -> SizeAndCost:
    """Return the account of a derived model and the dense model, both counted.

    context: tokens before the token whose FLOPs are counted.
    """
    return SizeAndCost(
        count_account(derived.network, context), count_account(model.network, context)
    )


def rewrite_network(
    dense: PreTrainedModel,
    rewrite: Rewrite,
    tokens: Tensor | None,
    stage: str,
    progress: Progress,
) -> PreTrainedModel:
    """Return a second network with rewritten matrices; the dense network is unchanged.

    tokens [n, t]: windows for the moments, each layer's collected on the outputs of the rewritten
    layers before it; None if no moments are needed.
    """
    network, total = clone(dense), len(decoder_layers(dense))
    stream = None if tokens is None else LayerStream(network, tokens)
    for index in range(total):
        progress(stage, index, total)
        layer, moments = read_exact(network, index), None
        if stream is not None:
            needs = {(TAPS[name], "second") for name in layer.matrices()}
            moments = stream.run(index, needs, advance=False)
        write_layer(network, rewrite_layer(layer, rewrite, moments))
        if stream is not None:
            stream.run(index)
    progress(stage, total, total)
    return network


def rewrite_layer(layer: Layer, rewrite: Rewrite, moments: Moments | None) -> Layer:
    """Return a layer with rewritten matrices, see `rewrite_projection`; a factor that projections
    share stays shared.
    """
    rewrite = once_each(rewrite)

    def changed(name: str, projection: Projection) -> Projection:
        moment = None if moments is None else moments.second(TAPS[name])
        return rewrite_projection(projection, rewrite, moment)

    return layer.with_matrices(**{name: changed(name, p) for name, p in layer.matrices().items()})
