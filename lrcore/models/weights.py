"""The weight files of a model folder: their names, whether they are complete, their fingerprint."""

import errno
import hashlib
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import InputError, quoted, with_article
from ..files import MARK
from ..shortage import raise_shortage
from ..tensor_files import NAMES
from .per_layer import values_of

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "*.onnx")
SIZES = (
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)  # of a config, none of which is larger than a dimension of some tensor
# Added to a variance: with another number a network is constant, or NaN.
SMALL = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
WHOLE = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "BOOL", "C64")
HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
LOOSE = 16  # times that: other sizes are refused by the shapes, tensor by tensor
PART = 2**22  # numbers checked at once
_hashes: dict[tuple[str, int, int], str] = {}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises InputError where it cannot be read or is another value."""
    try:
        if path.exists() and not path.is_file():  # a pipe waits for a writer, a device never ends
            raise OSError(errno.EINVAL, "it is no file")
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
    """The safetensors files of the model. Raises InputError where one is missing or truncated, and
    where an adapter is beside them.
    """
    if (folder / ADAPTER).exists():
        # transformers would put it in, with weights of whichever model and place it names
        raise InputError(
            f"'{folder}' holds an adapter beside the model ({ADAPTER}). Merge it into the weights "
            "with peft (merge_and_unload) and save the model, or take the file away."
        )
    files = _named_files(folder)
    for file in files:
        check_whole(file)
    return files


def _named_files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        shards = _shards(folder)
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise InputError(
                f"'{folder}' lacks {len(missing)} of the {len(shards)} weight files that {INDEX} "
                f"names, first '{missing[0]}'. "
                "The download was probably interrupted: fetch the missing files."
            )
        if shards:
            return [folder / shard for shard in shards]
    others = sorted(path.name for pattern in _OTHER_FORMATS for path in folder.glob(pattern))
    if others:
        raise InputError(
            f"'{folder}' has weights only as {others[0]}, which is not read because such files "
            "can run code or lose precision. "
            "Convert it once: load it with transformers and call save_pretrained(folder), which "
            "writes safetensors."
        )
    raise InputError(
        f"'{folder}' has no weights: neither {SINGLE} nor {INDEX}. Give a complete model folder "
        "in safetensors format."
    )


def _shards(folder: Path) -> list[str]:
    """The files that an index names. Raises InputError for one that is not in the folder."""
    named = read_json(folder / INDEX).get("weight_map", {})
    files = list(named.values()) if isinstance(named, dict) else [named]
    wrong = [one for one in files if not isinstance(one, str) or Path(one).name != one]
    if wrong:
        raise InputError(
            f"{INDEX} in '{folder}' names {wrong[0]!r}, which is no file of this folder. The index "
            "was changed or is damaged: copy it again."
        )
    return sorted(set(files))


def check_whole(file: Path) -> None:
    """Check the header of a safetensors file. Raises InputError where it is truncated or none."""
    try:
        with safe_open(file, framework="pt") as opened:
            opened.keys()
    except (SafetensorError, OSError) as error:
        raise_shortage(error)
        size = file.stat().st_size if file.exists() else 0
        raise InputError(
            f"'{file}' is not a complete safetensors file ({size:,} bytes; "
            f"{str(error).splitlines()[0]}). "
            "Probably an interrupted download or copy: delete it and fetch it again."
        ) from error


def check_claims(folder: Path, config: Any, files: list[Path]) -> None:
    """Check the sizes that a config of text claims against the files, before memory is taken for
    them. Raises InputError where they are far beyond what the files hold, and for weights that
    are no floating-point numbers.
    """
    shapes = []
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                part = opened.get_slice(name)
                shapes.append(part.get_shape())
                if name.endswith(".weight") and part.get_dtype() in WHOLE:
                    raise InputError(
                        f"'{name}' in '{folder}' is stored as {part.get_dtype()}, which is no "
                        "dtype of a weight. Take a model that is not quantised, or not damaged."
                    )
    check_layers(folder, config, len(shapes))
    for name in SMALL:
        for number in values_of(config, name):
            if isinstance(number, float) and not 0 <= number < 1:
                raise InputError(
                    f"'{folder}': {name} is {number} by config.json, and must be a small number, "
                    "such as 1e-06. Copy config.json of the model again."
                )
    widest = max((size for shape in shapes for size in shape), default=0)
    for name in SIZES:
        sizes = [size for size in values_of(config, name) if isinstance(size, int)]
        claimed = max(sizes, default=0)
        if claimed > LOOSE * widest:
            raise InputError(
                f"'{folder}': {name} is {claimed:,} by config.json, but no tensor in the weights "
                f"is wider than {widest:,}. Config and weights belong to different models."
            )


def check_ties(folder: Path, config: Any, files: list[Path]) -> None:
    """Raise InputError where a config of text says that the head is the embedding, and the files
    hold another head: read whole, the model would have that one, and offloaded the other.
    """
    if not getattr(config, "tie_word_embeddings", False):
        return
    places: dict[str, Path] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            places |= dict.fromkeys(opened.keys(), file)
    head, embedding = (
        next((name for name in places if kind.search(name)), None) for kind in (HEAD, EMBEDDING)
    )
    if head is None or embedding is None:
        return
    own, shared = (_tensor(places[name], name) for name in (head, embedding))
    if own.shape != shared.shape or not torch.equal(own, shared):
        raise InputError(
            f"'{folder}': config.json says that the head is the embedding (tie_word_embeddings), "
            f"but '{head}' in the weights is another matrix than '{embedding}'. Where the model "
            "has a head of its own, set it to false; else the weights belong to another model."
        )


def _tensor(file: Path, name: str) -> Tensor:
    with safe_open(file, framework="pt") as opened:
        tensor: Tensor = opened.get_tensor(name)
        return tensor


def bytes_converted(files: Iterable[Path], dtype: torch.dtype | str) -> int:
    """What the tensors of safetensors files take in memory that are read in another dtype than
    theirs; "auto": none is. The others stay mapped, and the system takes their pages back where it
    needs room.
    """
    if isinstance(dtype, str):
        return 0
    numbers = 0
    for file in files:
        with safe_open(file, framework="pt") as opened:
            parts = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118 (not a dict)
            others = [part for part in parts if part.get_dtype() != NAMES[dtype]]
            numbers += sum(math.prod(part.get_shape()) for part in others)
    return numbers * dtype.itemsize


def check_layers(folder: Path, config: Any, tensors: int) -> None:
    """Check the number of layers. Raises InputError where it is more than that of tensors."""
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > tensors:
        raise InputError(
            f"'{folder}': config.json calls for {layers:,} layers, but the weights hold "
            f"{tensors:,} tensors. Files are missing, or they belong to another model."
        )


def fingerprint(folder: Path, files: list[Path]) -> str:
    """sha256 (hex) over the names and contents of config.json, lrcore.json and the weight files."""
    whole = hashlib.sha256()
    described = [folder / name for name in ("config.json", MARK) if (folder / name).is_file()]
    for file in [*described, *files]:
        whole.update(f"{file.name}:{file_hash(file)}\n".encode())
    return whole.hexdigest()


def file_hash(file: Path) -> str:
    """sha256 of a file's contents, cached by its path, size and modification time."""
    stat = file.stat()
    key = (str(file.resolve()), stat.st_size, stat.st_mtime_ns)
    if key not in _hashes:
        with file.open("rb") as opened:
            _hashes[key] = hashlib.file_digest(opened, "sha256").hexdigest()
    return _hashes[key]


def nonfinite(tensor: Tensor) -> int:
    """How many values of a tensor [...] are NaN or infinite; 0 for one of integers."""
    if not tensor.is_floating_point() or not tensor.numel():
        return 0
    return sum(
        int((~torch.isfinite(part)).sum())
        for part in tensor.flatten().split(PART)
        if not torch.isfinite(torch.stack(part.aminmax())).all()  # NaN wherever one is in the part
    )


def check_finite(tensors: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype) -> None:
    """Check weights of any shape [...]. Raises InputError naming the first with NaN or infinity."""
    for name, tensor in tensors:
        count = nonfinite(tensor)
        if count:
            hint = (
                "Try dtype float32."
                if dtype == torch.float16
                else "The training diverged or the file is damaged: take another."
            )
            raise InputError(
                f"The weights in '{folder}' hold NaN or infinity: {count:,} of {tensor.numel():,} "
                f"values in '{name}'. {hint}"
            )
