"""Texts with images as the tokens of a model of images and text, whose vision tower and projector
stay dense.
"""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoProcessor, BatchEncoding

from ..data.tokens import encoded
from ..errors import InputError, with_article
from ..image_tokens import PATCHES, Patches, first_id, is_patch, seeing
from ..shortage import raise_shortage
from ..units import workers
from .architectures import BOTH_WAYS, MULTIMODAL, architecture_of
from .config import one_line, quiet
from .load import LoadedModel

_MARKER = re.compile("<image:([0-9a-f]{16})>")
_PIXELS = 50_000_000  # of an image; a small file can stand for any number of them


class _Stop(Exception):
    """Ends a forward pass once the inputs of the language model are known."""


class ImageEncoder:
    """Called as a transformers tokenizer is: tokens of a text in which "<image:KEY>" stands for an
    image, whose patches are tokens of their own (see lrcore/image_tokens.py).

    `look` is to be called with the tokens before the model runs them.
    """

    is_fast = False
    reads_images = True

    def __init__(self, model: LoadedModel, images: Mapping[str, bytes]) -> None:
        """images: the file of each image by its key. Raises InputError for a model that reads
        none, or whose folder does not say how they are prepared.
        """
        self._model, self._images = model, images
        self._processor = _processor(model)
        config = model.network.config
        place = getattr(config, "image_token_id", None)
        self._place = config.image_token_index if place is None else place
        self._encoded: dict[str, list[int]] = {}  # an image alone

    def __call__(self, text: str, **_: Any) -> BatchEncoding:
        """{"input_ids"}, without special tokens but those around an image."""
        before, *rest = _MARKER.split(text)
        ids = self._plain(before)
        # a special token divides a text: what is after one is tokenised as it would be alone
        for key, after in zip(rest[::2], rest[1::2], strict=True):
            ids += self._image(key) + self._plain(after)
        return BatchEncoding({"input_ids": ids})

    @property
    def patches(self) -> Patches:
        """What the embedding of the model knows."""
        return seeing(self._model.network.get_input_embeddings())

    def look(self, tokens: Tensor) -> list[Tensor]:
        """Let the embedding of the model know every image of some tokens, [...]: its vision tower
        runs once for each. Returns the ids [patches] of those that it did not know.
        """
        patches, added = self.patches, []
        wanted = set((tokens[is_patch(tokens)] >> PATCHES).tolist())
        for key in self._images:
            first = first_id(key)
            if first >> PATCHES in wanted and first not in patches:
                rows = self._rows(key)
                ids = torch.arange(first, first + len(rows), device=rows.device)
                patches.add(ids, rows)
                added.append(ids)
        return added

    def _plain(self, text: str) -> list[int]:
        found = encoded(self._model.tokenizer, text, add_special_tokens=False)
        ids: list[int] = found.input_ids
        return ids

    def _image(self, key: str) -> list[int]:
        """The tokens of an image: its patches, and what else the processor puts there."""
        if key not in self._encoded:
            number = count(first_id(key))
            ids = self._prepared(key)["input_ids"][0].tolist()
            self._encoded[key] = [next(number) if one == self._place else one for one in ids]
        return self._encoded[key]

    def _prepared(self, key: str) -> Any:
        """What the network takes for an image alone."""
        from PIL import Image

        marker = self._model.tokenizer.convert_ids_to_tokens(self._place)
        try:
            with Image.open(io.BytesIO(self._images[key])) as opened:
                if opened.width * opened.height > _PIXELS:
                    raise ValueError(f"it has {opened.width:,} x {opened.height:,} pixels")
                image = opened.convert("RGB")
            with quiet():
                return self._processor(
                    text=marker, images=image, return_tensors="pt", add_special_tokens=False
                )
        except Exception as error:  # Pillow's, and those of a processor of another model
            raise_shortage(error)
            raise InputError(
                f"The image with key {key} cannot be prepared for '{self._model.name}' "
                f"({one_line(error)}). It may be damaged, or the processor files of the model of "
                "another version."
            ) from error

    @torch.inference_mode()
    def _rows(self, key: str) -> Tensor:
        """What the language model reads in the place of an image's patches, [patches, d]."""
        network, caught = self._model.network, []

        def note(_module: Any, _args: Any, given: dict[str, Any]) -> None:
            caught.append(given["inputs_embeds"])
            raise _Stop

        inside, _, _ = architecture_of(network).layers.rpartition(".")
        handle = network.get_submodule(inside).register_forward_pre_hook(note, with_kwargs=True)
        given = self._prepared(key).to(self._model.device)
        for name, value in given.items():
            if value.is_floating_point():
                given[name] = value.to(network.dtype)
        try:
            with suppress(_Stop):
                network(**given, use_cache=False)
        finally:
            handle.remove()
        rows: Tensor = caught[0][0][given["input_ids"][0] == self._place]
        return rows


def encoder_of(model: LoadedModel, images: Mapping[str, bytes]) -> Any:
    """What makes tokens of texts for a model: its tokenizer, where the texts have no images.

    Raises InputError as `ImageEncoder` does.
    """
    return ImageEncoder(model, images) if images else model.tokenizer


def see(encoder: Any, tokens: Tensor) -> None:
    """Let the model of an encoder know the images of some tokens, [...], from now on; no effect on
    other tokenizers.
    """
    if isinstance(encoder, ImageEncoder):
        encoder.look(tokens)


@contextmanager
def shown(encoder: Any, tokens: Tensor) -> Iterator[None]:
    """Inside, the model of an encoder knows the images of some tokens, [...]; those that it did not
    know before are forgotten: the rows of thousands take more memory than a model.
    """
    added = encoder.look(tokens) if isinstance(encoder, ImageEncoder) else []
    try:
        yield
    finally:
        for ids in added:
            encoder.patches.drop(ids)


def _processor(model: LoadedModel) -> Any:
    family = model.network.config.model_type
    if family not in MULTIMODAL:
        able = ", ".join(one for one in MULTIMODAL if one not in BOTH_WAYS)
        raise InputError(
            f"'{model.name}' is {with_article(family)} model, which reads no images. Models of "
            f"images and text are {able}; or choose a data set of text."
        )
    if family in BOTH_WAYS:
        raise InputError(
            f"'{model.name}' is {with_article(family)} model, in which the patches of an image see "
            "one another in both directions; here it is calibrated and measured on text alone."
        )
    if workers().apart:
        raise InputError(
            "Images are read on this machine alone. Leave out the cluster, or choose a data set of "
            "text."
        )
    try:
        with quiet():
            processor = AutoProcessor.from_pretrained(
                model.folder, local_files_only=True, trust_remote_code=False
            )
    except ImportError as error:  # such as torchvision
        raise InputError(
            f"Preparing images for '{model.name}' needs a library that is not installed "
            f"({one_line(error)}). Install it, or choose a data set of text."
        ) from error
    except Exception as error:  # of files that are missing or of another version
        raise_shortage(error)
        raise _unprepared(model.folder, f": {one_line(error)}") from error
    if not hasattr(processor, "image_processor"):  # a tokenizer, where there is nothing else
        raise _unprepared(model.folder)
    return processor


def _unprepared(folder: Path, why: str = "") -> InputError:
    return InputError(
        f"'{folder}' does not say how images are prepared{why}. Copy preprocessor_config.json and "
        "processor_config.json of the model into it."
    )
