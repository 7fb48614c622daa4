"""A model made of another without ranks: what it is called and known by, and what it weighs
beside the one it was made of.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ..evaluation.cost import predicted_flops
from ..models.load import LoadedModel


def derived(
    model: LoadedModel, name: str, network: nn.Module, identity: Sequence[Any]
) -> LoadedModel:
    """The model of another network, whose fingerprint follows from that of `model` and from what
    was done, `identity`, JSON-able.

    Its report is the one `model` has, or names `model` as its base.
    """
    words = json.dumps([model.fingerprint, *identity], sort_keys=True)
    report = model.report or {"base": model.name, "base_fingerprint": model.fingerprint}
    return replace(
        model,
        name=name,
        network=network,
        fingerprint=hashlib.sha256(words.encode()).hexdigest(),
        report=report,
    )


def account(model: LoadedModel, made: LoadedModel, context: int = 256) -> dict[str, Any]:
    """What the card and the page say of a model beside its dense base, under the names of a
    plan's summary.
    """
    now, then = _weighed(made, context), _weighed(model, context)
    shares = {
        "removed_params": 1 - now["decoder_parameters"] / then["decoder_parameters"],
        "removed_total": 1 - now["parameters"] / then["parameters"],
        "removed_kv": 1 - now["kv_bytes_per_token"] / then["kv_bytes_per_token"],
    }
    dense = {f"dense_{name}": value for name, value in then.items()}
    return now | dense | shares | {"budget": "params", "achieved": shares["removed_params"]}


def _weighed(model: LoadedModel, context: int) -> dict[str, float]:
    size = model.size
    return {
        "parameters": size.parameters,
        "decoder_parameters": size.decoder_linear,
        "megabytes": size.megabytes,
        "kv_bytes_per_token": size.kv_bytes,
        "flops_per_token": predicted_flops(model, context),
    }
