"""Encoding of texts with images for multimodal models.

The vision tower and the projector of a model stay dense.
"""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoProcessor, BatchEncoding, PreTrainedModel
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from ..data.tokens import encoded
from ..layers.image_tokens import (
    PATCHES,
    Patches,
    PatchInputs,
    enable_patches,
    first_id,
    is_patch,
)
from ..system.errors import InputError, with_article
from ..system.resource_errors import raise_shortage
from ..system.units import workers
from .architectures import BIDIRECTIONAL_IMAGES, MULTIMODAL, SOUNDS_ONLY, architecture_of
from .config import error_line, quiet
from .layers import clone
from .load import LoadedModel

_MARKER = re.compile("<image:([0-9a-f]{16})>")
# in messages of transformers about an image processor that cannot be imported
_LIBRARY = re.compile(r"Missing optional dependencies: (\w+)")
VIDEOS = "video_processor"  # attribute of processors
# The texts around an image in the prompts of families whose processors do not write them, if the
# config does not name their tokens
_AROUND = {
    "got_ocr2": ("<img>", "</img>"),
    "kimi_k25": ("<|media_begin|>image<|media_content|>", "<|media_end|>"),
}
_PIXELS = 50_000_000  # limit per image; a small file can decompress to any number of pixels


class _Stop(Exception):
    """Ends a forward pass when the inputs of the language model are available."""


class ImageEncoder:
    """A tokenizer of texts in which "<image:KEY>" stands for an image.

    It is called as a transformers tokenizer. Each patch of an image has a unique token id (see
    lrcore/layers/image_tokens.py). Call `load` with the tokens before the model runs on them.
    """

    is_fast = False
    reads_images = True

    def __init__(self, model: LoadedModel, images: Mapping[str, bytes]) -> None:
        """Prepare the encoding for a model. images: the image files by key.

        Raises InputError for a model without images, or without a processor config.
        """
        self._model, self._images = model, images
        self._processor = read_processor(model)
        config = model.network.config
        image_token = getattr(config, "image_token_id", None)
        self._place = config.image_token_index if image_token is None else image_token
        self._encoded: dict[str, list[int]] = {}  # token ids by image key

    def __call__(self, text: str, **_: Any) -> BatchEncoding:
        """Return {"input_ids"}, without special tokens except those around an image."""
        before, *remaining = _MARKER.split(text)
        ids = self._plain(before)
        # A special token splits a text, so the parts can be tokenized separately.
        for key, after in zip(remaining[::2], remaining[1::2], strict=True):
            ids += self._image(key) + self._plain(after)
        return BatchEncoding({"input_ids": ids})

    @property
    def patches(self) -> Patches:
        """The patches that the embedding of the model contains."""
        network = self._model.network
        path = _language_model(network)
        return enable_patches(
            network.get_input_embeddings(),
            network.get_submodule(path),
            network.get_submodule(path.rpartition(".")[0]),
            BIDIRECTIONAL_IMAGES.get(network.config.model_type),
        )

    def load(self, tokens: Tensor) -> list[Tensor]:
        """Add the patches of all images in tokens [...] to the embedding of the model.

        The vision tower runs once per new image. Returns the ids [patches] of each new image.
        """
        patches, added = self.patches, []
        images = set((tokens[is_patch(tokens)] >> PATCHES).tolist())
        for key in self._images:
            first = first_id(key)
            if first >> PATCHES in images and first not in patches:
                inputs = self._patch_inputs(key)
                patches.add(inputs)
                added.append(inputs.ids)
        return added

    def _plain(self, text: str) -> list[int]:
        encoding = encoded(self._model.tokenizer, text, add_special_tokens=False)
        ids: list[int] = encoding.input_ids
        return ids

    def _image(self, key: str) -> list[int]:
        """Return the tokens of an image: its patches and the processor's special tokens."""
        if key not in self._encoded:
            number = count(first_id(key))
            ids = self._prepared(key)["input_ids"][0].tolist()
            self._encoded[key] = [next(number) if token == self._place else token for token in ids]
        return self._encoded[key]

    def _prepared(self, key: str) -> Any:
        """Return the inputs of the network for a text that consists of an image."""
        from PIL import Image

        start, end = self._around()
        # some processors replace another token than that of the patches (Gemma 3)
        token = getattr(self._processor, "image_token", self._token(self._place))
        marker = start + token + end
        try:
            with Image.open(io.BytesIO(self._images[key])) as opened:
                if opened.width * opened.height > _PIXELS:
                    raise ValueError(f"it has {opened.width:,} x {opened.height:,} pixels")
                image = opened.convert("RGB")
            with quiet():
                return self._processor(
                    text=marker, images=image, return_tensors="pt", add_special_tokens=False
                )
        except Exception as error:  # of Pillow, or of a processor of another model
            raise_shortage(error)
            raise InputError(
                f"The image with key {key} cannot be prepared for '{self._model.name}' "
                f"({error_line(error)}). It may be damaged, or the processor files belong to "
                "another version of the model."
            ) from error

    def _around(self) -> tuple[str, str]:
        """Return the texts before and after an image that its processor does not write."""
        config = self._model.network.config
        ends = (getattr(config, f"vision_{end}_token_id", None) for end in ("start", "end"))
        start, end = ("" if token is None else self._token(token) for token in ends)
        return _AROUND.get(config.model_type, (start, end))

    def _token(self, token_id: int) -> str:
        return str(self._model.tokenizer.convert_ids_to_tokens(token_id))

    @torch.inference_mode()
    def _patch_inputs(self, key: str) -> PatchInputs:
        """Return the inputs of the language model for the patches of an image.

        The network gets all tensors of the processor. A copy of the modules runs, since some
        networks store the positions of the last image.
        """
        network, caught = clone(self._model.network), []

        def catch(_module: Any, _args: Any, arguments: dict[str, Any]) -> None:
            caught.append(arguments)
            raise _Stop

        network.get_submodule(_language_model(network)).register_forward_pre_hook(
            catch, with_kwargs=True
        )
        inputs = self._prepared(key).to(self._model.device)
        for name, value in inputs.items():
            if value.is_floating_point():
                inputs[name] = value.to(network.dtype)
        with suppress(_Stop):
            network(**inputs, use_cache=False)
        mask = inputs["input_ids"][0] == self._place
        rows: Tensor = caught[0]["inputs_embeds"][0][mask]
        first, positions = first_id(key), caught[0].get("position_ids")
        # [axes, 1, t] with M-RoPE, [1, t] or None without
        offsets = torch.zeros(len(rows), 0, dtype=torch.long, device=rows.device)
        if positions is not None and positions.dim() == 3:
            offsets = positions[:, 0, mask].T
            offsets = offsets - offsets.min()
        added = caught[0].get("deepstack_visual_embeds") or ()
        return PatchInputs(
            torch.arange(first, first + len(rows), device=rows.device),
            rows,
            offsets,
            torch.stack([*added], 1) if added else rows[:, None][:, :0],
        )


def _language_model(network: PreTrainedModel) -> str:
    """Return the path of the module that holds the decoder layers."""
    return architecture_of(network).layers.rpartition(".")[0]


def text_encoder(model: LoadedModel, images: Mapping[str, bytes]) -> Any:
    """Return an `ImageEncoder` for texts with images, and the tokenizer of the model otherwise.

    Raises InputError as `ImageEncoder` does.
    """
    return ImageEncoder(model, images) if images else model.tokenizer


def load_images(encoder: Any, tokens: Tensor) -> None:
    """Add the images in tokens [...] to the model's embedding; no effect on plain tokenizers."""
    if isinstance(encoder, ImageEncoder):
        encoder.load(tokens)


@contextmanager
def loaded_images(encoder: Any, tokens: Tensor) -> Iterator[None]:
    """Add the images in tokens [...] to the model's embedding while the context is active.

    New images are removed afterwards, since the patches of thousands need more memory than a model.
    """
    added = encoder.load(tokens) if isinstance(encoder, ImageEncoder) else []
    try:
        yield
    finally:
        for ids in added:
            encoder.patches.drop(ids)


def read_processor(model: LoadedModel) -> Any:
    """Return the processor of texts and images in the folder of a model.

    Raises InputError as `ImageEncoder` does.
    """
    family = model.network.config.model_type
    families = [name for name in MULTIMODAL if name not in SOUNDS_ONLY]
    if family not in families:
        raise InputError(
            f"'{model.name}' is {with_article(family)} model, which reads no images. Use a model "
            f"of the family {', '.join(families)}, or a text data set."
        )
    if workers().apart:
        raise InputError(
            "Workers of a cluster cannot read images. Leave out the cluster, or choose a text data "
            "set."
        )
    try:
        with quiet():
            processor = _from_files(model.folder, family)
    except Exception as error:  # a missing library, missing files, or files of another version
        raise_shortage(error)
        missing = _LIBRARY.search(str(error))
        if missing is None and not isinstance(error, ImportError):
            raise _unprepared(model.folder, f": {error_line(error)}") from error
        library = (
            missing[1] if missing else f"a library that is not installed ({error_line(error)})"
        )
        raise InputError(
            f"Preparing images for '{model.name}' needs {library}. Install it with pip, or choose "
            "a text data set."
        ) from error
    if not hasattr(processor, "image_processor"):  # transformers falls back to the tokenizer
        raise _unprepared(model.folder)
    return processor


def _from_files(folder: Path, family: str) -> Any:
    """Return the processor of a folder; without its part for videos, which needs torchvision."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    kind: Any = getattr(transformers, PROCESSOR_MAPPING_NAMES[family])
    names = kind.get_attributes()
    if VIDEOS not in names:
        return AutoProcessor.from_pretrained(folder, **options)
    is_read = classmethod(lambda _: [name for name in names if name != VIDEOS])
    without: Any = type(kind.__name__, (kind,), {"get_attributes": is_read})
    values, options = kind.get_processor_dict(folder, **options)
    parts = without._get_arguments_from_pretrained(folder, values, **options)
    parts.insert(names.index(VIDEOS), None)
    unchecked = {"check_argument_for_proper_class": lambda *_: None}  # None is of no class
    complete: Any = type(kind.__name__, (kind,), unchecked)
    processor = complete.from_args_and_dict(parts, values)
    processor.__class__ = without
    return processor


def _unprepared(folder: Path, detail: str = "") -> InputError:
    return InputError(
        f"'{folder}' has no valid image processor config{detail}. Copy preprocessor_config.json "
        "and processor_config.json of the model into it."
    )
