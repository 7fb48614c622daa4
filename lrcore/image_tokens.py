"""Patches of images as tokens: ids beyond every vocabulary, which the embedding of a model looks up
in a table of its own.

So all that runs windows of tokens, from calibration to probes, runs windows with images.
"""

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError

FIRST = 1 << 32  # no vocabulary is so large
PATCHES = 20  # bits of an id for the place of a patch in its image
_IMAGES = 42  # bits of an id for its image
IGNORED = -100  # as a target: `cross_entropy` passes it over


def first_id(key: str) -> int:
    """The id of the first patch of an image, of the first 42 bits of its key (16 digits of a
    sha256); those of the others follow.
    """
    return (int(key, 16) >> (64 - _IMAGES) << PATCHES) + FIRST


def is_patch(ids: Tensor) -> Tensor:
    """Which of ids [...] are patches of images, bool [...]."""
    return ids >= FIRST


def highest_token(ids: Tensor) -> int:
    """The highest of ids [...] that is no patch; 0 where all are."""
    return int(ids.masked_fill(is_patch(ids), 0).max())


def targets(tokens: Tensor) -> Tensor:
    """What is to be predicted of windows [..., t], [..., t - 1]: patches are IGNORED."""
    after = tokens[..., 1:]
    return after.masked_fill(is_patch(after), IGNORED)


def text_of(tokenizer: Any, ids: Tensor) -> str:
    """The text of tokens [t], with "[image]" in the place of patches that follow one another."""
    kinds = itertools.groupby(ids.tolist(), lambda one: one >= FIRST)
    return "".join("[image]" if patch else tokenizer.decode(list(own)) for patch, own in kinds)


class Patches:
    """Rows [k, d] of an embedding by the ids of patches [k], in the order of the ids.

    One object serves a network and all copies of its modules.
    """

    def __init__(self) -> None:
        self._rows: tuple[Tensor, Tensor] | None = None  # one value, as threads share it

    def __deepcopy__(self, memo: object) -> "Patches":
        return self

    def __contains__(self, one: int) -> bool:
        return self._rows is not None and bool((self._rows[0] == one).any())

    def add(self, ids: Tensor, rows: Tensor) -> None:
        """Further rows [n, d] of ids [n] that are not there yet."""
        if self._rows is not None:
            ids, rows = torch.cat([self._rows[0], ids]), torch.cat([self._rows[1], rows])
        order = ids.argsort()
        self._rows = ids[order], rows[order]

    def drop(self, ids: Tensor) -> None:
        """Forget the rows of some ids [n]."""
        if self._rows is not None:
            kept = ~torch.isin(self._rows[0], ids)
            self._rows = self._rows[0][kept], self._rows[1][kept]

    def of(self, ids: Tensor) -> Tensor:
        """The rows of some ids [n], [n, d]. Raises InputError where one is not there."""
        if self._rows is not None:
            known, rows = self._rows
            places = torch.searchsorted(known, ids).clamp_max(len(known) - 1)
            if len(known) and bool((known[places] == ids).all()):
                return rows[places]
        raise InputError(
            "These tokens have images that the model has not seen. Make them with the model that "
            "runs them, by `encoder_of` and `see`."
        )


class SeeingEmbedding(nn.Module):
    """What an embedding of tokens becomes that knows patches as well: see `seeing`."""

    patches: Patches

    def forward(self, ids: Tensor) -> Tensor:
        """Rows [..., d] of ids [...]."""
        own = is_patch(ids)
        rows: Tensor = super().forward(ids.masked_fill(own, 0))
        return rows.index_put((own,), self.patches.of(ids[own]).to(rows)) if own.any() else rows


def seeing(embedding: nn.Module) -> Patches:
    """The patches that an embedding knows, at first none; from now on it takes their ids.

    Parameters and buffers stay as they are, and so does what it gives for tokens.
    """
    if not isinstance(embedding, SeeingEmbedding):
        kind = type(embedding)
        vars(embedding)["patches"] = Patches()
        embedding.__class__ = type(kind.__name__, (SeeingEmbedding, kind), {})
    patches: Patches = vars(embedding)["patches"]
    return patches
