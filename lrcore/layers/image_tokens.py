"""Image patches as tokens: ids above any vocabulary, with the inputs of the model in a table.

Any function that runs windows of tokens, from calibration to probes, thereby runs windows with
images.
"""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class PatchInputs:
    """The inputs of a language model for k patches.

    ids [k]. rows [k, d]: embeddings. positions [k, axes]: rotary positions (M-RoPE), from the first
    patch of the image; axes is 0 if patches are numbered like words. added [k, layers, d]: terms
    that are added to the stream after each of the first layers (deepstack).
    """

    ids: Tensor
    rows: Tensor
    positions: Tensor
    added: Tensor

    def selected(self, chosen: Tensor) -> "PatchInputs":
        """Return the inputs at indices [n], or where a mask [k] is True."""
        return PatchInputs(*(part[chosen] for part in self._parts()))

    def with_further(self, other: "PatchInputs") -> "PatchInputs":
        """Return the inputs of both, sorted by id."""
        pairs = zip(self._parts(), other._parts(), strict=True)
        merged = PatchInputs(*(torch.cat(pair) for pair in pairs))
        return merged.selected(merged.ids.argsort())

    def _parts(self) -> tuple[Tensor, ...]:
        return self.ids, self.rows, self.positions, self.added


class Patches:
    """The inputs of the patches that a network has encoded.

    A network and all copies of the modules share an instance.
    """

    def __init__(self, types: str | None = None) -> None:
        """types: the argument of a multimodal model that marks the patches of images, which then
        attend to each other in both directions; None if its attention is causal.
        """
        self.types = types
        self._inputs: PatchInputs | None = None  # assigned at once, for other threads
        self._embedded = threading.local()  # ids of the forward pass of a thread

    def __deepcopy__(self, memo: object) -> "Patches":
        return self

    def __contains__(self, patch_id: int) -> bool:
        return self._inputs is not None and bool((self._inputs.ids == patch_id).any())

    def add(self, inputs: PatchInputs) -> None:
        """Add the inputs of new ids."""
        known = self._inputs
        self._inputs = inputs if known is None else known.with_further(inputs)

    def drop(self, ids: Tensor) -> None:
        """Remove the inputs of ids [n]."""
        if self._inputs is not None:
            self._inputs = self._inputs.selected(~torch.isin(self._inputs.ids, ids))

    def inputs_of(self, ids: Tensor) -> PatchInputs:
        """Return the inputs of ids [n], in their order. Raises InputError if an id is missing."""
        inputs = self._inputs
        if inputs is not None and len(inputs.ids):
            indices = torch.searchsorted(inputs.ids, ids).clamp_max(len(inputs.ids) - 1)
            if bool((inputs.ids[indices] == ids).all()):
                return inputs.selected(indices)
        raise InputError(
            "These tokens contain images that the model has not encoded. Encode them with the same "
            "model, by `encoder_of` and `see`."
        )

    def embed(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Return rows [..., d] of tokens with the rows of patches; ids [...] of the tokens.

        `arguments` uses the ids, too.
        """
        are_patches = is_patch(ids)
        self._embedded.ids = ids if bool(are_patches.any()) else None
        if self._embedded.ids is None:
            return rows
        return rows.index_put((are_patches,), self.inputs_of(ids[are_patches]).rows.to(rows))

    def arguments(self) -> dict[str, Any]:
        """Return further arguments of the language model for the tokens that were embedded last."""
        ids, self._embedded.ids = getattr(self._embedded, "ids", None), None
        if ids is None:
            return {}
        named: dict[str, Any] = {}
        if self.sets_positions(ids):
            named["position_ids"] = self.positions(ids)
        mask, terms = self.added(ids)
        if terms:
            named |= {"visual_pos_masks": mask, "deepstack_visual_embeds": terms}
        return named

    def marks(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the argument of a multimodal model that marks the patches in tokens [b, t]."""
        are_patches = is_patch(ids)
        return {self.types: are_patches.long()} if self.types and are_patches.any() else {}

    def sets_positions(self, ids: Tensor) -> bool:
        """Return True if the rotary positions of tokens [...] depend on the images in them."""
        inputs = self._inputs
        return inputs is not None and inputs.positions.shape[1] > 0 and bool(is_patch(ids).any())

    def positions(self, ids: Tensor) -> Tensor:
        """Return the rotary positions [axes, b, t] of tokens [b, t] with images.

        As in Qwen2-VL, the token after an image follows the highest position in the image. In a
        window that begins inside an image, the image starts at 0.
        """
        rows = [torch.cat([*self._runs(row)]) for row in ids]  # [t, axes] each
        return torch.stack(rows).permute(2, 0, 1)

    def _runs(self, ids: Tensor) -> Iterator[Tensor]:
        """Yield the positions of each run of words and of each image in tokens [t], [n, axes]."""
        start, axes = 0, self.inputs_of(ids[:0]).positions.shape[1]
        for number, run in itertools.groupby(enumerate(ids.tolist()), lambda pair: _run(*pair)):
            run_ids = ids.new_tensor([token for _, token in run])
            offsets = torch.arange(len(run_ids), device=ids.device)[:, None].expand(-1, axes)
            if number is not None:
                offsets = self.inputs_of(run_ids).positions
            yield start + offsets
            start += int(offsets.max()) + 1

    def added(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return which of tokens [b, t] are patches, and the terms [patches, d] that are added to
        the stream there, for each of the first layers.
        """
        mask = is_patch(ids)
        return mask, [*self.inputs_of(ids[mask]).added.unbind(1)] if mask.any() else []


def _run(index: int, token: int) -> int | None:
    """Return a number that the patches of an image in a row of tokens share; None for words."""
    return token - index if token >= FIRST else None


class ImageEmbedding(nn.Module):
    """An embedding that also accepts the ids of patches, see `enable_patches`."""

    patches: Patches

    def forward(self, ids: Tensor) -> Tensor:
        """Return rows [..., d] of ids [...]."""
        return self.patches.embed(ids, super().forward(ids.masked_fill(is_patch(ids), 0)))


class ImageLanguageModel(nn.Module):
    """A language model that gets all inputs of patches, see `enable_patches`."""

    patches: Patches
    padding_idx: int

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the language model, on images with their positions and added terms."""
        return super().forward(*args, **kwargs | self.patches.arguments())

    def get_per_layer_inputs(self, ids: Tensor, *args: Any) -> Tensor:
        """Return the embeddings per layer (Gemma 4); those of patches are those of padding.

        ids [b, t]. Returns [b, t, layers, size].
        """
        texts = ids.masked_fill(is_patch(ids), self.padding_idx)
        rows: Tensor = super().get_per_layer_inputs(texts, *args)  # type: ignore[misc]
        return rows


class ImageMarker(nn.Module):
    """A multimodal model in whose masks the patches of an image attend to each other, see
    `enable_patches`.
    """

    patches: Patches

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the multimodal model on tokens `input_ids` [b, t], in which it marks the patches."""
        return super().forward(*args, **kwargs | self.patches.marks(kwargs["input_ids"]))


def enable_patches(
    embedding: nn.Module, language_model: nn.Module, multimodal: nn.Module, types: str | None
) -> Patches:
    """Let a language model accept the ids of patches, and return their inputs, empty at first.

    embedding: of its tokens. multimodal: the model that makes its masks. types: see `Patches`.
    Parameters, buffers and results of text do not change.
    """
    patches = patches_of(embedding)
    if patches is None:
        patches = Patches(types)
        modules: list[tuple[nn.Module, type[nn.Module]]]
        modules = [(embedding, ImageEmbedding), (language_model, ImageLanguageModel)]
        modules += [(multimodal, ImageMarker)] if types else []
        for module, base in modules:
            vars(module)["patches"] = patches
            kind = type(module)
            module.__class__ = type(kind.__name__, (base, kind), {"__module__": kind.__module__})
    return patches


def patches_of(embedding: nn.Module) -> Patches | None:
    """Return the inputs of patches of a network with this embedding; None without images."""
    return vars(embedding).get("patches")
