"""Weight files of a model folder: names, completeness, plausibility and fingerprint."""

import errno
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..system.errors import InputError, quoted, with_article
from ..system.files import MARK
from ..system.resource_errors import raise_shortage
from ..system.tensor_files import NAMES, StoredTensor
from .hub import ADAPTER
from .per_layer import layer_values

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "*.onnx")
SIZE_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)  # config fields that never exceed the largest dimension of the tensors
# Added to a variance; with a value of another size, a network is constant or NaN.
EPSILON_FIELDS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
SIZE_TOLERANCE = 16  # tolerated factor; smaller mismatches are reported by tensor
CHUNK = 2**22  # numbers that are checked at a time
_hashes: dict[tuple[str, int, int], str] = {}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises InputError if the file is not a readable object."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe or a device may never end
            raise OSError(errno.EINVAL, "it is not a regular file")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{quoted(str(path))} cannot be read: {error.strerror}. Check the path."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"'{path}' cannot be read as JSON ({str(error).splitlines()[0]}). The file is "
            "damaged: copy it again."
        ) from error
    if not isinstance(values, dict):
        raise InputError(
            f"'{path}' holds {with_article(type(values).__name__)}, not an object. It is not a "
            "file of a model folder."
        )
    return values


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model.

    Raises InputError if a file is missing or truncated, or if the folder contains an adapter.
    """
    if (folder / ADAPTER).exists():
        # transformers would load it, with weights from the path or repository that it names.
        raise InputError(
            f"'{folder}' contains an adapter ({ADAPTER}). Merge it into the weights with peft "
            "(merge_and_unload) and save the model, or remove the file."
        )
    files = _find_files(folder)
    for file in files:
        check_complete(file)
    return files


def _find_files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        shards = _shards(folder)
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise InputError(
                f"'{folder}' lacks {len(missing)} of the {len(shards)} weight files in {INDEX}, "
                f"first '{missing[0]}'. "
                "The download was probably interrupted: fetch the missing files."
            )
        if shards:
            return [folder / shard for shard in shards]
    other_files = sorted(path.name for kind in _OTHER_FORMATS for path in folder.glob(kind))
    if other_files:
        raise InputError(
            f"'{folder}' has weights only as {other_files[0]}, which is not read because such "
            "files can run code or lose precision. Convert it once: load it with transformers and "
            "call save_pretrained(folder), which writes safetensors."
        )
    raise InputError(
        f"'{folder}' has no weights: neither {SINGLE} nor {INDEX}. Give a complete model folder "
        "in safetensors format."
    )


def _shards(folder: Path) -> list[str]:
    """Return the files in an index. Raises InputError for a path outside the folder."""
    named = read_json(folder / INDEX).get("weight_map", {})
    files = list(named.values()) if isinstance(named, dict) else [named]
    invalid = [name for name in files if not isinstance(name, str) or Path(name).name != name]
    if invalid:
        raise InputError(
            f"{INDEX} in '{folder}' names {invalid[0]!r}, which is not a file name. The index was "
            "changed or is damaged: copy it again."
        )
    return sorted(set(files))


def check_complete(file: Path) -> None:
    """Check the header of a safetensors file. Raises InputError if the file is damaged."""
    try:
        with safe_open(file, framework="pt") as opened:
            opened.keys()
    except (SafetensorError, OSError) as error:
        raise_shortage(error)
        size = file.stat().st_size if file.exists() else 0
        raise InputError(
            f"'{file}' is not a complete safetensors file ({size:,} bytes; "
            f"{str(error).splitlines()[0]}). "
            "The download or copy was probably interrupted: delete it and fetch it again."
        ) from error


def check_sizes(folder: Path, config: Any, stored: Mapping[str, StoredTensor]) -> None:
    """Compare the sizes in a text config with the tensors, before memory is allocated.

    Raises InputError if the sizes far exceed those of the tensors, and for weights that are not
    floating-point numbers.
    """
    for name, tensor in stored.items():
        if name.endswith(".weight") and not tensor.dtype.is_floating_point:
            raise InputError(
                f"'{name}' in '{folder}' is stored as {NAMES[tensor.dtype]}, which is not a dtype "
                "of weights. Use a model that is not quantized, or not damaged."
            )
    shapes = [tensor.shape for tensor in stored.values()]
    check_layers(folder, config, len(shapes))
    for name in EPSILON_FIELDS:
        for number in layer_values(config, name):
            if isinstance(number, float) and not 0 <= number < 1:
                raise InputError(
                    f"'{folder}': {name} is {number} in config.json, but must be a small number, "
                    "such as 1e-06. Copy config.json of the model again."
                )
    widest = max((size for shape in shapes for size in shape), default=0)
    for name in SIZE_FIELDS:
        sizes = [size for size in layer_values(config, name) if isinstance(size, int)]
        claimed = max(sizes, default=0)
        if claimed > SIZE_TOLERANCE * widest:
            raise InputError(
                f"'{folder}': {name} is {claimed:,} in config.json, but the largest dimension of a "
                f"tensor is {widest:,}. Config and weights belong to different models."
            )


def check_ties(folder: Path, config: Any, stored: Mapping[str, StoredTensor]) -> None:
    """Raise InputError if a config ties head and embedding, but the files contain a different head.

    The loaded model would use the head of the file, and the offloaded model the embedding.
    """
    if not getattr(config, "tie_word_embeddings", False):
        return
    head, embedding = (
        next((name for name in stored if kind.search(name)), None) for kind in (HEAD, EMBEDDING)
    )
    if head is None or embedding is None:
        return
    head_weight, shared = (stored[name].map() for name in (head, embedding))
    if head_weight.shape != shared.shape or not torch.equal(head_weight, shared):
        raise InputError(
            f"'{folder}': config.json ties the head to the embedding (tie_word_embeddings), but "
            f"'{head}' in the weights differs from '{embedding}'. Set it to false if the model has "
            "an untied head; otherwise the weights belong to another model."
        )


def converted_bytes(stored: Mapping[str, StoredTensor], dtype: torch.dtype | str) -> int:
    """Return the memory, in bytes, of tensors whose dtype changes on loading.

    0 for "auto". Tensors that are not converted stay memory-mapped, so the system can free them.
    """
    if isinstance(dtype, str):
        return 0
    converted = (tensor for tensor in stored.values() if tensor.is_converted(dtype))
    return sum(math.prod(tensor.shape) for tensor in converted) * dtype.itemsize


def check_layers(folder: Path, config: Any, tensors: int) -> None:
    """Check the number of layers. Raises InputError if it exceeds the number of tensors."""
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > tensors:
        raise InputError(
            f"'{folder}': config.json calls for {layers:,} layers, but the weights hold "
            f"{tensors:,} tensors. Files are missing, or they belong to another model."
        )


def fingerprint(folder: Path, files: list[Path]) -> str:
    """Return the sha256 (hex) of config.json, lrcore.json and the weight files, with names."""
    digest = hashlib.sha256()
    described = [folder / name for name in ("config.json", MARK) if (folder / name).is_file()]
    for file in [*described, *files]:
        digest.update(f"{file.name}:{file_hash(file)}\n".encode())
    return digest.hexdigest()


def file_hash(file: Path) -> str:
    """Return the sha256 of a file, cached by path, size and modification time."""
    stat = file.stat()
    key = (str(file.resolve()), stat.st_size, stat.st_mtime_ns)
    if key not in _hashes:
        with file.open("rb") as opened:
            _hashes[key] = hashlib.file_digest(opened, "sha256").hexdigest()
    return _hashes[key]


def count_nonfinite(tensor: Tensor) -> int:
    """Count the values of a tensor [...] that are NaN or infinite; 0 for integers."""
    if not tensor.is_floating_point() or not tensor.numel():
        return 0
    return sum(
        int((~torch.isfinite(part)).sum())
        for part in tensor.flatten().split(CHUNK)
        if not torch.isfinite(torch.stack(part.aminmax())).all()  # aminmax propagates NaN
    )


def check_finite(tensors: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype) -> None:
    """Raise InputError for the first tensor [...] with NaN or infinity."""
    for name, tensor in tensors:
        count = count_nonfinite(tensor)
        if count:
            hint = (
                "Try dtype float32."
                if dtype == torch.float16
                else "The training diverged or the file is damaged: use another model."
            )
            raise InputError(
                f"The weights in '{folder}' hold NaN or infinity: {count:,} of {tensor.numel():,} "
                f"values in '{name}'. {hint}"
            )
