"""A model made of another: what it is called and known by, and its account beside the one it was
made of.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from ..account import SizeAndCost
from ..as_json import json_text
from ..models.counting import count_account
from ..models.load import LoadedModel
from ..provenance import BaseModel


def derived(
    model: LoadedModel, name: str, network: PreTrainedModel, identity: Sequence[Any]
) -> LoadedModel:
    """The model of another network, whose fingerprint follows from that of `model` and from what
    was done, `identity`, JSON-able.

    Its base is the one `model` has, or else `model` itself; its history and account are still
    those of `model`.
    """
    serialised = json_text([model.fingerprint, *identity], sort_keys=True)
    return replace(
        model,
        name=name,
        network=network,
        fingerprint=hashlib.sha256(serialised.encode()).hexdigest(),
        base=model.base or BaseModel(model.name, model.fingerprint),
    )


def compared(model: LoadedModel, made: LoadedModel, context: int = 256) -> SizeAndCost:
    """The account of a model beside the dense one that it was made of, both counted.

    context: tokens before the one whose FLOPs are counted.
    """
    return SizeAndCost(count_account(made.network, context), count_account(model.network, context))
