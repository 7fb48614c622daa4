"""Export as a GGUF file for llama.cpp.

The file is written tensor by tensor under a temporary name, so it is never incomplete.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...models.architectures import text_config
from ...models.gguf_import import PER_LAYER_ARCHITECTURE
from ...models.load import LoadedModel
from ...system.errors import InputError, unknown
from ...system.files import check_file, draft_of
from ...system.path_access import expanded
from ..card import license_fields
from ..changes import Changes, Padding
from ..paths import strip_paths
from ..unsupported import sliding_window
from .gguf_fit import FileLayer, GgufFamily, file_family, file_layers
from .gguf_vocabulary import vocabulary
from .layer_tensors import named_tensors, tensor_shapes

KINDS = ("f32", "f16", "bf16", "q8_0")
_BLOCK = 32  # numbers of a row that share a scale in q8_0
# Largest numbers of ggml's types; in q8_0, scales are float16 and codes at most 127.
_LARGEST_HALF = torch.finfo(torch.float16).max
_LARGEST = {
    "F32": torch.finfo(torch.float32).max,
    "F16": _LARGEST_HALF,
    "BF16": torch.finfo(torch.bfloat16).max,
    "Q8_0": 127 * _LARGEST_HALF,
}


@dataclass(frozen=True)
class GgufFile:
    """A written file.

    architecture: llama.cpp's name. kind: type of the matrices. parameters: numbers in the file.
    bytes: on disk. kv_values: cached numbers per token. notes: changes of the model by the export.
    """

    path: Path
    architecture: str
    kind: str
    parameters: int
    bytes: int
    kv_values: int
    notes: tuple[str, ...]


def export_gguf(model: LoadedModel, path: str | Path, kind: str = "f16") -> GgufFile:
    """Write a model as a GGUF file for llama.cpp.

    Low-rank and quantized matrices are multiplied out, and narrow heads are padded with zeros;
    narrow MLPs stay narrow if the architecture supports that.

    kind: type of the matrices, f32, f16, bf16 or q8_0; norms and biases are float32. Raises
    InputError if llama.cpp does not support a structure of the model, or its tokenizer.
    """
    path = expanded(path).absolute()
    check_gguf(path, kind)
    layers = file_layers(model.network)
    family = file_family(model.network, layers)
    shapes = tensor_shapes(model.network, family, layers)
    settings = _settings(model, family, layers)
    with draft_of(path) as draft:
        tensors = named_tensors(model.network, family, layers)
        _write(draft, family.name, kind.upper(), settings, shapes, tensors)
    return GgufFile(
        path,
        family.name,
        kind,
        sum(map(prod, shapes.values())),
        path.stat().st_size,
        sum(layer.file_cached for layer in layers),
        tuple(_notes(model, layers, kind, list(shapes.values()))),
    )


def check_gguf(path: Path, kind: str) -> None:
    """Raise InputError if `export_gguf` would refuse the path or the type of matrices."""
    if kind not in KINDS:
        raise unknown("type of GGUF matrices", kind, KINDS)
    if path.suffix != ".gguf" or path.is_dir():
        raise InputError(f"'{path}' is not a valid GGUF file name. Give a name that ends in .gguf.")
    check_file(path)
    if find_spec("gguf") is None:
        raise InputError("Install the package gguf to write GGUF files: pip install gguf.")


def _settings(model: LoadedModel, family: GgufFamily, layers: list[FileLayer]) -> dict[str, Any]:
    """Return the settings of the file by name; values that differ by layer are lists."""
    config, size = text_config(model.network), layers[0].head_size
    embedding, context = model.network.get_input_embeddings(), config.max_position_embeddings
    settings: dict[str, Any] = {
        "block_count": len(layers),
        "context_length": min(context, sliding_window(model.network) or context),
        "embedding_length": embedding.embedding_dim,
        "feed_forward_length": [layer.file_width for layer in layers],
        "attention.head_count": [layer.file_kv_heads * layer.group for layer in layers],
        "attention.head_count_kv": [layer.file_kv_heads for layer in layers],
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "vocab_size": embedding.num_embeddings,
    }
    settings |= {name: float(getattr(config, value)) for name, value in family.multipliers.items()}
    if family.name != PER_LAYER_ARCHITECTURE:
        settings = {name: v[0] if isinstance(v, list) else v for name, v in settings.items()}
    general = {"name": strip_paths(model.name)}
    for name, text in license_fields(model.folder).items():
        general[name.replace("license_", "license.")] = str(text)
    return {
        **{f"general.{name}": value for name, value in general.items()},
        **{f"{family.name}.{name}": value for name, value in settings.items()},
        **vocabulary(model.tokenizer, embedding.num_embeddings),
    }


def _write(
    path: Path,
    architecture: str,
    kind: str,
    settings: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterator[tuple[str, Tensor]],
) -> None:
    """Write the file. tensors: in the order of `shapes`."""
    import gguf
    from numpy import dtype

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    coverage = "ALL" if kind == "F32" else "MOSTLY"
    writer.add_file_type(gguf.LlamaFileType[f"{coverage}_{kind}"])
    for name, value in settings.items():
        _add(writer, name, value)
    for name, shape in shapes.items():
        stored = _stored_as(shape, kind)
        block, nbytes = gguf.GGML_QUANT_SIZES[stored]
        size = prod(shape) // block * nbytes
        writer.add_tensor_info(name, shape, dtype("float32"), size, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for (name, shape), (tensor_name, tensor) in zip(shapes.items(), tensors, strict=True):
        assert (tensor_name, tuple(tensor.shape)) == (name, shape)
        stored = _stored_as(shape, kind)
        _refuse_infinite(name, tensor, stored.name)
        array = tensor.detach().float().cpu().contiguous().numpy()
        writer.write_tensor_data(gguf.quantize(array, stored))
    writer.close()


def _refuse_infinite(name: str, tensor: Tensor, stored: str) -> None:
    """Raise InputError if the stored tensor would contain NaN or infinity."""
    largest, limit = float(tensor.detach().abs().max()), _LARGEST[stored]
    if not largest <= limit:  # also for NaN
        raise InputError(
            f"{name} contains {largest:.6g}, which exceeds the limit of {stored}, {limit:.6g}. "
            "Choose --type bf16 or f32; if the value is NaN or infinite, the model is damaged."
        )


def _add(writer: Any, name: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case int():
            writer.add_uint32(name, value)
        case _:
            writer.add_array(name, value)


def _stored_as(shape: Sequence[int], kind: str) -> Any:
    """Return ggml's type of a tensor: float32 for vectors, float16 for rows of partial blocks."""
    import gguf

    if len(shape) < 2:
        return gguf.GGMLQuantizationType.F32
    return gguf.GGMLQuantizationType["F16" if kind == "Q8_0" and shape[1] % _BLOCK else kind]


def _notes(
    model: LoadedModel, layers: list[FileLayer], kind: str, shapes: list[tuple[int, ...]]
) -> Iterator[str]:
    """Describe the changes of the model, and the savings that they lose."""
    yield from Changes(
        "file",
        factored=sum(layer.factored for layer in layers),
        narrowed=sum(layer.narrowed for layer in layers),
        heads=Padding.of([(layer.kv_heads, layer.file_kv_heads) for layer in layers]),
        widths=Padding.of([(layer.width, layer.file_width) for layer in layers]),
        parameters=(model.size.parameters, sum(map(prod, shapes))),
        cached=(
            sum(layer.cached for layer in layers),
            sum(layer.file_cached for layer in layers),
        ),
    ).clauses()
    partial = sum(len(shape) > 1 and shape[1] % _BLOCK > 0 for shape in shapes)
    if kind == "q8_0" and partial:
        yield f"{partial} matrices are f16, since their rows are not a multiple of {_BLOCK}"
    if window := sliding_window(model.network):
        yield f"the context is limited to the sliding window, {window:,}"
