"""Conversion of a GGUF file to a model folder in the cache.

The file is dequantized once and then loaded like any other model. transformers maps the tensor
names and converts the tokenizer; no pickle or code is read.
"""

import contextlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from ..system.as_json import json_text
from ..system.cache import hold, trim
from ..system.errors import InputError
from ..system.files import (
    MARK,
    cache_folder,
    cache_key,
    folder_draft_of,
    remove_unlocked,
    write_text,
)
from ..system.locks import Lock
from ..system.resource_errors import raise_shortage
from ..system.tensor_files import write_tensors
from .config import auto_class, error_line, family_config, quiet, write_config
from .gguf_header import VOCABULARY, GgufHeader, read_header
from .weights import SINGLE, file_hash, read_json

DESCRIPTION = "gguf.json"  # in the folder of a converted model: its note
FORMAT = 1  # of the folder; a new number makes every file be dequantized again
UNQUANTIZED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # types without quantization
PER_LAYER_ARCHITECTURE = (
    "deci"  # architecture with sizes per layer, which transformers does not support
)
MIN_FRACTION = 0.01  # types with a smaller fraction of the values are not named in the note
_BITS = re.compile(r"(?:I?Q|FP|T)(\d)")
_held: dict[Path, Lock | None] = {}
_made: set[Path] = set()  # folders that this process has made


def dequantized(file: Path, dtype: str = "float32", about: str = "") -> Path:
    """Return the folder of a GGUF file's model in safetensors, which is made if it does not exist.

    The folder name depends on the file's contents, the dtype and `about`, so a changed file is
    converted again. dtype: as for `load`; "auto" is the dtype of an unquantized file, and float32
    for a quantized one. "float64" is stored as float32. about: the start of the model's note.

    Raises InputError if the package gguf is not installed, for a damaged file, for an unsupported
    family, and if transformers would ignore a part of the file.
    """
    if find_spec("gguf") is None:
        raise InputError(
            f"'{file.name}' is a GGUF file. Install the package gguf to read it: pip install gguf."
        )
    header = read_header(file)
    stored = _stored_dtype(header) if dtype == "auto" else dtype
    stored = "float32" if stored == "float64" else stored
    key = cache_key("gguf", FORMAT, file_hash(file), stored, about)

    def write(draft: Path) -> None:
        _write_model(header, draft, getattr(torch, stored))
        _write_description(header, draft, about)

    return made_once(cache_folder() / "gguf" / key, write)


def made_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return a model folder of the cache, filled by `write` if it does not exist.

    write: fills a temporary folder with a model and the file `DESCRIPTION`.
    """
    if _is_held(folder):
        return folder
    _made.add(folder)
    while not _is_held(folder):
        # If another process is faster, its equal folder is used.
        with folder_draft_of(folder, keep=DESCRIPTION) as draft:
            write(draft)
    trim()
    return folder


def discard_dequantized(folder: Path) -> bool:
    """Delete a converted model that cannot be loaded, so that it is made again.

    Returns False, and deletes no file, if this process made the folder (the result would be the
    same) or if another process uses it.
    """
    if folder in _made or folder not in _held:
        return False
    lock = _held.pop(folder)
    if lock is not None:
        lock.release()
    return remove_unlocked(folder)


def _is_held(folder: Path) -> bool:
    """Return True if a converted model exists; keep it in the cache until this process ends.

    Models read from it may access its files at any time.
    """
    if not (folder / DESCRIPTION).is_file():
        _held.pop(folder, None)
    elif folder not in _held:
        lock = hold(folder, make=False)
        if folder.is_dir():  # not evicted in the meantime
            _held[folder] = lock
    return folder in _held


def model_note(folder: Path) -> str:
    """Return the note that accompanies all results of the model in a folder, or ""."""
    described = next(
        (folder / name for name in (MARK, DESCRIPTION) if (folder / name).is_file()), None
    )
    return "" if described is None else str(read_json(described).get("note", ""))


def _stored_dtype(header: GgufHeader) -> str:
    """Return the dtype of the matrices; norms are float32 in every file."""
    kinds = {tensor.kind for tensor in header.tensors if len(tensor.shape) > 1}
    return UNQUANTIZED.get(kinds.pop(), "float32") if len(kinds) == 1 else "float32"


def _write_description(header: GgufHeader, folder: Path, about: str) -> None:
    """Write the note, and the license as a model card."""
    values = {"file": header.path.name, "note": _storage_note(header, about)}
    if licence := header["general.license"]:
        card = f"---\nlicense: {json_text(str(licence))}\n---\n"
        write_text(folder / "README.md", card)
    write_text(folder / DESCRIPTION, json_text(values, indent=2) + "\n")


def _storage_note(header: GgufHeader, about: str) -> str:
    """Return `about` and the storage types, most frequent first."""
    counts: Counter[str] = Counter()
    for tensor in header.tensors:
        counts[tensor.kind] += tensor.values
    kinds = [kind for kind, count in counts.most_common() if count > MIN_FRACTION * counts.total()]
    lossy = [kind for kind in kinds if kind not in UNQUANTIZED]
    if not lossy:
        return about
    bits = _BITS.match(lossy[0].removeprefix("MX").removeprefix("NV"))
    stored = f"dequantized from {bits[1] + ' bits ' if bits else ''}({', '.join(kinds)})"
    return f"{about}, {stored}" if about else stored[0].upper() + stored[1:]


def _write_model(header: GgufHeader, folder: Path, dtype: torch.dtype) -> None:
    """Write config, safetensors and tokenizer of a GGUF file into an existing folder.

    transformers reads the vocabulary string by string each time it opens a file, which takes longer
    than all tensors. Therefore it gets a part without vocabulary and a part without tensors.
    """
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    _check_family(header)
    _check_depth(header)
    tokens, weights = folder / "tokenizer.gguf", folder / "weights.gguf"
    header.write_part(tokens, tensors=False)
    header.write_part(weights, without=VOCABULARY)
    with _readable(header.path), quiet(), contextlib.redirect_stderr(io.StringIO()):
        config = AutoConfig.from_pretrained(folder, gguf_file=weights.name, local_files_only=True)
        config = family_config(config, header.path.name)
        vars(config).pop("_model_name_or_path", None)  # the title in the file
        network = _empty_network(header, config)
        read = load_gguf_checkpoint(str(weights), True, _TensorNames.of(network), dtype)["tensors"]
        tensors = _checked_tensors(network, read, header.path)
        write_tensors(folder / SINGLE, tensors, {"format": "pt"})
        write_config(network, folder, is_compressed=False, dtype=str(dtype).removeprefix("torch."))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=tokens.name)
        tokenizer.save_pretrained(folder)
    for part in (tokens, weights):
        part.unlink()


@dataclass(frozen=True)
class _TensorNames:
    """The tensor names of a network, as transformers' GGUF reader requests them.

    For each child module the reader builds a table of all names, which takes longer than reading
    the tensors. The only child here is the model below the head.
    """

    config: PretrainedConfig
    tensors: dict[str, Tensor]
    inner: tuple[tuple[str, "_TensorNames"], ...] = ()

    @classmethod
    def of(cls, network: PreTrainedModel) -> "_TensorNames":
        below = cls(network.config, network.base_model.state_dict())
        inner = ((network.base_model_prefix, below),)
        return cls(network.config, network.state_dict(), inner)

    def state_dict(self) -> dict[str, Tensor]:
        return self.tensors

    def named_children(self) -> tuple[tuple[str, "_TensorNames"], ...]:
        return self.inner


def _checked_tensors(
    network: PreTrainedModel, read: dict[str, Tensor], path: Path
) -> dict[str, Tensor]:
    """Return the tensors of all parameters, tied ones once. Raises InputError for a mismatch."""
    tensors = {}
    for name, parameter in network.named_parameters():
        tensor = read.get(name)
        if tensor is None or tensor.shape != parameter.shape:
            state = "missing" if tensor is None else f"of the shape {list(tensor.shape)}"
            raise InputError(
                f"'{name}', of the shape {list(parameter.shape)} by the header of '{path}', is "
                f"{state} in the file. Load the model from safetensors."
            )
        tensors[name] = tensor.contiguous()
    return tensors


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert exceptions of transformers to InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # many types, from KeyError to errors of numpy
        raise_shortage(error)
        raise InputError(
            f"transformers cannot read the GGUF file '{path}' ({type(error).__name__}: "
            f"{error_line(error)}). Load the model from safetensors."
        ) from error


def _check_family(header: GgufHeader) -> None:
    """Raise InputError for files that `export --format gguf` writes with sizes per layer."""
    if header.architecture == PER_LAYER_ARCHITECTURE:
        raise InputError(
            f"'{header.path}' has the architecture {PER_LAYER_ARCHITECTURE}, whose sizes differ by "
            "layer. llama.cpp runs it, but transformers does not read it. Load the original "
            "checkpoint, or safetensors."
        )


def _check_depth(header: GgufHeader) -> None:
    """Raise InputError for a part of a model, and for more layers than tensors.

    transformers would allocate lists of that length.
    """
    layers = header[f"{header.architecture}.block_count"]
    names = {tensor.name for tensor in header.tensors}
    too_many = isinstance(layers, int | float) and layers > len(names)
    if too_many or "token_embd.weight" not in names:
        raise InputError(
            f"'{header.path}' holds {len(names)} tensors, too few for its {layers} layers and its "
            "embedding. It is a part of a model, or damaged."
        )


def _empty_network(header: GgufHeader, config: PretrainedConfig) -> PreTrainedModel:
    """Build the network of a config on the meta device, with the vocabulary size of the embedding.

    Raises InputError if the network and the file have different numbers of values: transformers
    silently ignores unsupported tensors, such as biases of a llama or factors of scaled rotary
    positions.
    """
    sizes = {tensor.name: tensor for tensor in header.tensors}
    scaling = header[f"{header.architecture}.rope.scaling.type"]
    if scaling not in (None, "none"):
        raise InputError(
            f"'{header.path}' has rotary positions scaled by '{scaling}', which transformers does "
            "not read from GGUF. Load the model from safetensors."
        )
    config.vocab_size = sizes["token_embd.weight"].shape[0]
    with torch.device("meta"), quiet():
        network: PreTrainedModel = auto_class(config).from_config(config)
    expected = sum(parameter.numel() for parameter in network.parameters())
    held = sum(tensor.values for tensor in sizes.values())
    spare = sizes["output.weight"].values if "output.weight" in sizes else 0
    if held != expected and (not config.tie_word_embeddings or held - spare != expected):
        raise InputError(
            f"'{header.path}' holds {held:,} values, but the {config.model_type} in its header has "
            f"{expected:,}: a part is missing, or transformers would ignore a part. Load the model "
            "from safetensors."
        )
    return network
