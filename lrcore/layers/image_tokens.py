"""Image patches as tokens: ids above any vocabulary, with embeddings in a separate table.

Any function that runs windows of tokens, from calibration to probes, thereby runs windows with
images.
"""

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from ..system.errors import InputError

FIRST = 1 << 32  # larger than any vocabulary
PATCHES = 20  # bits of an id for the position of a patch in the image
_IMAGES = 42  # bits of an id for the image
IGNORED = -100  # as a target: `cross_entropy` ignores it


def first_id(key: str) -> int:
    """Return the id of the first patch of an image, from the first 42 bits of the key (16 hex
    digits of a sha256).

    The ids of the remaining patches follow it.
    """
    return (int(key, 16) >> (64 - _IMAGES) << PATCHES) + FIRST


def is_patch(ids: Tensor) -> Tensor:
    """Return which of ids [...] are patches of images, bool [...]."""
    return ids >= FIRST


def highest_token(ids: Tensor) -> int:
    """Return the highest of ids [...] that is not a patch; 0 if all are patches."""
    return int(ids.masked_fill(is_patch(ids), 0).max())


def targets(tokens: Tensor) -> Tensor:
    """Return the targets of windows [..., t], [..., t - 1]; patches are IGNORED."""
    after = tokens[..., 1:]
    return after.masked_fill(is_patch(after), IGNORED)


def text_of(tokenizer: Any, ids: Tensor) -> str:
    """Return the text of tokens [t], with "[image]" for each run of patches."""
    runs = itertools.groupby(ids.tolist(), lambda token: token >= FIRST)
    return "".join(
        "[image]" if are_patches else tokenizer.decode(list(tokens)) for are_patches, tokens in runs
    )


class Patches:
    """Rows [k, d] of an embedding for the ids of patches [k], sorted by id.

    A network and all copies of the modules share an instance.
    """

    def __init__(self) -> None:
        self._rows: tuple[Tensor, Tensor] | None = None  # assigned at once, for other threads

    def __deepcopy__(self, memo: object) -> "Patches":
        return self

    def __contains__(self, patch_id: int) -> bool:
        return self._rows is not None and bool((self._rows[0] == patch_id).any())

    def add(self, ids: Tensor, rows: Tensor) -> None:
        """Add rows [n, d] of new ids [n]."""
        if self._rows is not None:
            ids, rows = torch.cat([self._rows[0], ids]), torch.cat([self._rows[1], rows])
        order = ids.argsort()
        self._rows = ids[order], rows[order]

    def drop(self, ids: Tensor) -> None:
        """Remove the rows of ids [n]."""
        if self._rows is not None:
            remaining = ~torch.isin(self._rows[0], ids)
            self._rows = self._rows[0][remaining], self._rows[1][remaining]

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the rows [n, d] of ids [n]. Raises InputError if an id is missing."""
        if self._rows is not None:
            patch_ids, rows = self._rows
            positions = torch.searchsorted(patch_ids, ids).clamp_max(len(patch_ids) - 1)
            if len(patch_ids) and bool((patch_ids[positions] == ids).all()):
                return rows[positions]
        raise InputError(
            "These tokens contain images that the model has not encoded. Encode them with the same "
            "model, by `encoder_of` and `see`."
        )


class ImageEmbedding(nn.Module):
    """An embedding that also accepts the ids of patches, see `enable_patches`."""

    patches: Patches

    def forward(self, ids: Tensor) -> Tensor:
        """Return rows [..., d] of ids [...]."""
        are_patches = is_patch(ids)
        rows: Tensor = super().forward(ids.masked_fill(are_patches, 0))
        return (
            rows.index_put((are_patches,), self.patches.rows_of(ids[are_patches]).to(rows))
            if are_patches.any()
            else rows
        )


def enable_patches(embedding: nn.Module) -> Patches:
    """Let an embedding accept the ids of patches, and return the table of patches, empty at first.

    Parameters, buffers and the embeddings of tokens do not change.
    """
    if not isinstance(embedding, ImageEmbedding):
        kind = type(embedding)
        vars(embedding)["patches"] = Patches()
        embedding.__class__ = type(kind.__name__, (ImageEmbedding, kind), {})
    patches: Patches = vars(embedding)["patches"]
    return patches
