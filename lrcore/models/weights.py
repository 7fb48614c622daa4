"""The weight files of a model folder: their names, whether they are complete, their fingerprint."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import InputError

MARK = "lrcore.json"  # marks a folder as an lrcore checkpoint
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "*.onnx")
PART = 2**22  # numbers checked at once
_hashes: dict[tuple[str, int, int], str] = {}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises InputError where it cannot be read or is another value."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"'{path}' cannot be read as JSON ({str(error).splitlines()[0]}). The file is "
            "damaged: copy it again."
        ) from error
    if not isinstance(values, dict):
        raise InputError(
            f"'{path}' holds a {type(values).__name__}, not an object. It is not a file of a "
            "model folder."
        )
    return values


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the model. Raises InputError where one is missing or truncated."""
    files = _named_files(folder)
    for file in files:
        check_whole(file)
    return files


def _named_files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        shards = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
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


def check_whole(file: Path) -> None:
    """Check the header of a safetensors file. Raises InputError where it is truncated or none."""
    try:
        with safe_open(file, framework="pt") as opened:
            opened.keys()
    except (SafetensorError, OSError) as error:
        size = file.stat().st_size if file.exists() else 0
        raise InputError(
            f"'{file}' is not a complete safetensors file ({size:,} bytes; "
            f"{str(error).splitlines()[0]}). "
            "Probably an interrupted download or copy: delete it and fetch it again."
        ) from error


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
