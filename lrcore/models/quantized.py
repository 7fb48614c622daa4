"""Quantized weights of published models: the formats that are dequantized when they are read.

Matrices are computed from their codes and scales in float32, one at a time, so that an offloaded
model is never dequantized in memory. Activations and caches are not quantized.
"""

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from ..system.errors import InputError, shown
from ..system.resource_errors import raise_shortage
from ..system.tensor_files import StoredTensor
from . import codes
from .weights import read_json

Parts = Mapping[str, Tensor]
CONFIG_KEYS = ("quantization_config", "compression_config")
_SCALED_METHODS = ("fp8", "mxfp8", "fbgemm_fp8", "compressed-tensors")
# Scales of activations and of the cache, which are not quantized here
_OF_ACTIVATIONS = re.compile(
    r"\.((input|activation|output|[qkv])_scale|(input|output)_(global_scale|zero_point))$"
)
# The formats of compressed-tensors that are read; others are sparse, or ordered for a kernel
_COMPRESSED_FORMATS = (
    None,
    "dense",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
)
_GPTQ_FORMATS = ("gptq", "gptq_v2")  # others are ordered for a kernel
_PACKED_BITS = (2, 4, 8)  # widths of codes that divide the 32 bits of an integer evenly
# Matrices of Conv1D by model_type: transformers stores [in, out], quantizers store [out, in].
_TRANSPOSED = {"gpt2": re.compile(r"(^|\.)h\.\d+\.")}
_CODE_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8)
_QUANT_STATE = re.compile(r"\.quant_state\.bitsandbytes__(nf4|fp4)$")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
_QUANTIZED_NAME = re.compile(
    r"gptq|awq|fp8|fp4|nf4|bnb|[\W_]\d-?bit|int[48]|w\da\d|hqq|torchao", re.I
)


@contextlib.contextmanager
def _readable(name: str, folder: Path) -> Iterator[None]:
    """Raise InputError in place of the errors of codes and scales that do not fit each other."""
    try:
        yield
    except (RuntimeError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        raise_shortage(error)
        raise InputError(
            f"'{name}' in '{folder}' cannot be dequantized ({(str(error).splitlines() or [''])[0]})"
            ". Files are damaged, or belong to another model: copy the folder again."
        ) from error


@dataclass(frozen=True)
class Dequantized(StoredTensor):
    """A matrix that is stored as codes and scales. Fields as in `StoredTensor`, of the matrix.

    parts: its stored tensors by suffix. decode: computes the matrix [*shape] from them.
    """

    parts: tuple[tuple[str, StoredTensor], ...] = ()
    decode: Callable[[Parts], Tensor] | None = None

    def load(self) -> Tensor:
        """Return the matrix [*shape] in float32. Raises InputError for tensors that do not fit."""
        assert self.decode is not None
        with torch.inference_mode(False), torch.no_grad(), _readable(self.name, self.file.parent):
            matrix = self.decode({suffix: part.load() for suffix, part in self.parts})
            if tuple(matrix.shape) != tuple(self.shape):
                raise ValueError(f"the shape is {list(matrix.shape)}, not {list(self.shape)}")
            return matrix

    def is_converted(self, dtype: torch.dtype) -> bool:
        return True


@dataclass(frozen=True)
class _Matrix:
    """A quantized matrix: shape, bits of a code, and the function that computes it."""

    shape: tuple[int, ...]
    bits: int
    decode: Callable[[Parts], Tensor]

    def transposed(self) -> "_Matrix":
        """Return the matrix with rows and columns exchanged."""

        def decode(parts: Parts) -> Tensor:
            return self.decode(parts).mT.contiguous()

        return _Matrix(self.shape[::-1], self.bits, decode)


@dataclass(frozen=True)
class _Format:
    """A format of quantized matrices.

    codes: suffix of the codes, such as ".qweight"; name: suffix of the matrix. parts: suffixes of
    the other tensors, the first of which every matrix has. read: returns a matrix from its stored
    tensors, or None for tensors that are not quantized.
    """

    codes: str
    name: str
    parts: tuple[str, ...]
    read: Callable[[Mapping[str, StoredTensor], Mapping[str, Any]], _Matrix | None]


def quantization_of(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of the quantization in a config.json with its method, or {}.

    Older versions of transformers did not write the method of bitsandbytes.
    """
    text = values.get("text_config")
    parts = [values, text] if isinstance(text, Mapping) else [values]
    stored = next(filter(None, (part.get(key) for part in parts for key in CONFIG_KEYS)), None)
    if stored is None:
        return {}
    if not isinstance(stored, Mapping):
        return {"quant_method": shown(stored)}
    method = str(stored.get("quant_method", "a method without a name"))
    is_old = "quant_method" not in stored and (
        stored.get("load_in_4bit") or stored.get("load_in_8bit")
    )
    is_bitsandbytes = is_old or method.startswith("bitsandbytes")
    return {**stored, "quant_method": "bitsandbytes" if is_bitsandbytes else method}


def check_quantization(values: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if the weights are quantized in a format that is not read."""
    described = quantization_of(values)
    if reason := _unread_format(described):
        original = unquantized_name(values, path.parent)
        raise InputError(
            f"'{path}': the weights are quantized by {reason}, which is not read. Load the "
            f"unquantized model{f' {original}' if original else ''}."
        )


def _unread_format(described: Mapping[str, Any]) -> str:
    """Return the format if it is not read, or ""."""
    method = described.get("quant_method", "")
    if method not in ("", *_FORMATS):
        return str(method)
    if method == "compressed-tensors":
        sparsity = described.get("sparsity_config")
        parts = [described, sparsity, *_groups(described)]
        formats = [part.get("format") for part in parts if isinstance(part, Mapping)]
        if unread := [name for name in formats if name not in _COMPRESSED_FORMATS]:
            return f"{method} in the format {unread[0]}"
        widths = [weights.get("num_bits") for weights in _weights(described)]
        if "pack-quantized" in formats and (unread := [n for n in widths if n not in _PACKED_BITS]):
            return f"{method} with {unread[0]} bits"
    if method == "gptq":
        layout = described.get("checkpoint_format") or "gptq"
        if layout not in _GPTQ_FORMATS:
            return f"{method} in the format {layout}"
        if described.get("bits") not in _PACKED_BITS:
            return f"{method} with {described.get('bits')} bits"
    if method == "awq":
        layout = described.get("version") or described.get("format") or "gemm"
        if str(layout).lower() != "gemm" or described.get("bits", 4) != codes.AWQ_BITS:
            return f"{method} with {described.get('bits')} bits in the layout {layout}"
    return ""


def unquantized_name(values: Mapping[str, Any], folder: Path) -> str:
    """Return the hub id of the model before quantization, from config or model card, or ""."""
    card = folder / "README.md"  # its first lines may name the model as "base_model"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    head = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    try:
        fields = yaml.safe_load(head[1]) if head else {}
    except yaml.YAMLError:
        fields = {}
    base = fields.get("base_model") if isinstance(fields, dict) else None
    names = [values.get("_name_or_path"), *(base if isinstance(base, list) else [base])]
    return next(
        (
            name
            for name in names
            if isinstance(name, str)
            and _HUB_ID.fullmatch(name)
            and not _QUANTIZED_NAME.search(name)
        ),
        "",
    )


def dequantized_tensors(
    folder: Path, stored: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], str]:
    """Return the tensors of a folder by name, quantized matrices as `Dequantized`, and a note.

    The note is "" if no matrix is quantized. Raises InputError for codes without scales.
    """
    config = read_json(folder / "config.json")
    described = quantization_of(config)
    transposed = _TRANSPOSED.get(str(config.get("model_type")))
    tensors: dict[str, StoredTensor] = dict(stored)
    if not described:
        return tensors, ""
    method, bits = described["quant_method"], set()
    for kind in _FORMATS[method]:
        for name in [name for name in tensors if name.endswith(kind.codes)]:
            parts = _parts(name, kind, tensors)
            with _readable(name, folder):
                matrix = kind.read(parts, described) if parts else None
            if matrix is not None:
                stem = name.removesuffix(kind.codes)
                if transposed is not None and transposed.search(name):
                    matrix = matrix.transposed()
                for suffix in parts:
                    tensors.pop(stem + suffix)
                tensors[stem + kind.name] = Dequantized(
                    stored[name].file,
                    stem + kind.name,
                    matrix.shape,
                    torch.float32,
                    parts=tuple(parts.items()),
                    decode=matrix.decode,
                )
                bits.add(matrix.bits)
    if not bits:
        return tensors, ""
    tensors = {n: tensor for n, tensor in tensors.items() if not _OF_ACTIVATIONS.search(n)}
    _check_scales(folder, tensors)
    widths = " and ".join(map(str, sorted(bits)))
    return tensors, f"Dequantized from {widths} bits ({method})"


def _parts(
    name: str, kind: _Format, tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the stored tensors of a quantized matrix by suffix; {} if it is not quantized."""
    stem = name.removesuffix(kind.codes)
    suffixes = [suffix for suffix in kind.parts if stem + suffix in tensors]
    if kind.parts[0] not in suffixes:
        return {}
    return {suffix: tensors[stem + suffix] for suffix in (kind.codes, *suffixes)}


def _check_scales(folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
    for name, tensor in tensors.items():
        if name.endswith(".weight") and tensor.dtype in _CODE_DTYPES:
            raise InputError(
                f"'{name}' in '{folder}' is stored as {str(tensor.dtype).removeprefix('torch.')} "
                "without scales that fit. Files are missing, or they belong to another model."
            )


def _scaled(parts: Mapping[str, StoredTensor], described: Mapping[str, Any]) -> _Matrix | None:
    """Read codes of 8 bits with a scale per matrix, row, group of columns, or block."""
    weight, block = parts[".weight"], _block(described)
    scale = next(suffix for suffix in parts if suffix.startswith(".weight_scale"))
    if weight.dtype not in _CODE_DTYPES or len(weight.shape) != 2:
        return None
    if not codes.fits(weight.shape, parts[scale].shape, block):
        return None

    def decode(tensors: Parts) -> Tensor:
        zero = tensors.get(".weight_zero_point")
        return codes.scaled(tensors[".weight"], tensors[scale], zero, block)

    return _Matrix(weight.shape, 8, decode)


def _block(described: Mapping[str, Any]) -> Sequence[int] | None:
    """Return the rows and columns of the blocks that have a scale, or None."""
    blocks: list[Any] = [described.get("weight_block_size")]
    blocks += [weights.get("block_structure") for weights in _weights(described)]
    blocks = [block for block in blocks if isinstance(block, list) and len(block) == 2]
    sizes = [block for block in blocks if all(isinstance(n, int) and n > 0 for n in block)]
    return next(iter(sizes), None)


def _groups(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the groups of matrices of compressed-tensors."""
    groups = described.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, Mapping) else []
    return [group for group in groups if isinstance(group, Mapping)]


def _weights(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the descriptions of the weights of the groups of compressed-tensors."""
    descriptions = (group.get("weights") for group in _groups(described))
    return [weights for weights in descriptions if isinstance(weights, Mapping)]


def _packed(parts: Mapping[str, StoredTensor], described: Mapping[str, Any]) -> _Matrix | None:
    """Read integers of 2, 4 or 8 bits in integers of 32 bits, or FP4 numbers in bytes."""
    stored = parts[".weight_packed"]
    if stored.dtype == torch.uint8:
        shape = (stored.shape[0], 2 * stored.shape[1])
        return _Matrix(shape, 4, codes.compressed_fp4)
    if ".weight_shape" not in parts:
        return None
    rows, columns = map(int, parts[".weight_shape"].load().tolist())
    if not codes.fits((rows, columns), parts[".weight_scale"].shape, None):
        return None
    widths = [b for b in _PACKED_BITS if math.ceil(columns * b / 32) == stored.shape[1]]
    if not widths:
        return None
    bits = widths[0]
    return _Matrix(
        (rows, columns), bits, lambda tensors: codes.compressed_integers(tensors, columns, bits)
    )


def _gptq(parts: Mapping[str, StoredTensor], described: Mapping[str, Any]) -> _Matrix | None:
    bits, (rows, columns) = described["bits"], parts[".qweight"].shape
    # The first version of the format stores zero points minus 1.
    offset = 0 if described.get("checkpoint_format") == "gptq_v2" else 1
    return _Matrix(
        (columns, rows * 32 // bits), bits, lambda tensors: codes.gptq(tensors, bits, offset)
    )


def _awq(parts: Mapping[str, StoredTensor], described: Mapping[str, Any]) -> _Matrix | None:
    rows, columns = parts[".qweight"].shape
    return _Matrix((columns * 32 // codes.AWQ_BITS, rows), codes.AWQ_BITS, codes.awq)


def _mxfp4(parts: Mapping[str, StoredTensor], described: Mapping[str, Any]) -> _Matrix | None:
    experts, size_out, groups, half = parts["_blocks"].shape
    return _Matrix((experts, groups * 2 * half, size_out), 4, codes.mxfp4_experts)


def _normal_float(
    parts: Mapping[str, StoredTensor], described: Mapping[str, Any]
) -> _Matrix | None:
    state = next((tensor for suffix, tensor in parts.items() if _QUANT_STATE.search(suffix)), None)
    if state is None or parts[".weight"].dtype != torch.uint8:
        return None
    fields = json.loads(bytes(state.load().tolist()))
    return _Matrix(
        tuple(fields["shape"]), 4, lambda tensors: codes.bitsandbytes_4bit(tensors, fields)
    )


def _int8(parts: Mapping[str, StoredTensor], described: Mapping[str, Any]) -> _Matrix | None:
    weight = parts[".weight"]
    return _Matrix(weight.shape, 8, codes.bitsandbytes_8bit) if weight.dtype == torch.int8 else None


_SCALE_NAMES = (".weight_scale_inv", ".weight_scale")
_SCALED = tuple(
    _Format(".weight", ".weight", (scale, ".weight_zero_point"), _scaled) for scale in _SCALE_NAMES
)
_INTEGERS = _Format(
    ".weight_packed",
    ".weight",
    (
        ".weight_scale",
        ".weight_shape",
        ".weight_zero_point",
        ".weight_g_idx",
        ".weight_global_scale",
    ),
    _packed,
)
_QUANT_STATES = tuple(f".weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
_ABSMAX = tuple(f".weight.{n}" for n in ("quant_map", "nested_absmax", "nested_quant_map"))
_FORMATS: Mapping[str, Iterable[_Format]] = {
    **dict.fromkeys(_SCALED_METHODS, (*_SCALED, _INTEGERS)),
    "mxfp4": (_Format("_blocks", "", ("_scales",), _mxfp4),),
    "gptq": (_Format(".qweight", ".weight", (".scales", ".qzeros", ".g_idx"), _gptq),),
    "awq": (_Format(".qweight", ".weight", (".scales", ".qzeros"), _awq),),
    "bitsandbytes": (
        _Format(".weight", ".weight", (".weight.absmax", *_ABSMAX, *_QUANT_STATES), _normal_float),
        _Format(".weight", ".weight", (".SCB", ".weight_format"), _int8),
    ),
}
