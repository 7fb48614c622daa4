"""Export as a GGUF file for llama.cpp. The file appears whole or not at all, and is written one
tensor at a time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, unknown
from ..files import check_file, draft_of
from ..models.architectures import text_config
from ..models.gguf import UNEVEN
from ..models.load import LoadedModel
from ..places import expanded
from .card import licence
from .gguf_families import GgufFamily
from .gguf_fit import LayerFacts, file_family, layer_facts, rotary_factors
from .gguf_layers import named_tensors
from .gguf_vocabulary import vocabulary
from .notes import Changes, Filled
from .paths import without_paths
from .plain import window_of

KINDS = ("f32", "f16", "bf16", "q8_0")
_BLOCK = 32  # numbers of a row that share a scale in q8_0
# The largest number of ggml's types; a scale of q8_0 is a float16, and its numbers end at 127
_HALF = torch.finfo(torch.float16).max
_LARGEST = {
    "F32": torch.finfo(torch.float32).max,
    "F16": _HALF,
    "BF16": torch.finfo(torch.bfloat16).max,
    "Q8_0": 127 * _HALF,
}


@dataclass(frozen=True)
class GgufFile:
    """A written file.

    architecture: llama.cpp's. kind: of the matrices. parameters: numbers in the file. bytes: on
    disk. kv_values: cached numbers per token. notes: what had to be done to the model, a clause
    each.
    """

    path: Path
    architecture: str
    kind: str
    parameters: int
    bytes: int
    kv_values: int
    notes: tuple[str, ...]


def export_gguf(model: LoadedModel, path: str | Path, kind: str = "f16") -> GgufFile:
    """Write a model as a GGUF file, which llama.cpp runs, and say what remains of its savings.

    kind: of the matrices, f32, f16, bf16 or q8_0; norms and biases are float32. Low-rank and
    quantised matrices are multiplied out and narrower heads filled with zeros; narrower MLPs stay
    narrow.
    Raises InputError where llama.cpp has no place for something of the model or its tokenizer.
    """
    path = expanded(path).absolute()
    check_gguf(path, kind)
    layers = layer_facts(model.network)
    family = file_family(model.network, layers)
    settings = _settings(model, family, layers)
    with draft_of(path) as draft:
        shapes = _write(model, draft, family, kind.upper(), settings)
    return GgufFile(
        path,
        family.name,
        kind,
        sum(map(prod, shapes)),
        path.stat().st_size,
        sum(one.cached_there for one in layers),
        tuple(_notes(model, layers, kind, shapes)),
    )


def check_gguf(path: Path, kind: str) -> None:
    """Raise InputError where `export_gguf` would refuse the path or the kind of matrices."""
    if kind not in KINDS:
        raise unknown("type of GGUF matrices", kind, KINDS)
    if path.suffix != ".gguf" or path.is_dir():
        raise InputError(f"'{path}' is no name of a GGUF file. Give one that ends in .gguf.")
    check_file(path)
    if find_spec("gguf") is None:
        raise InputError(
            "GGUF files are written by the package gguf. Install it: pip install gguf."
        )


def _settings(model: LoadedModel, family: GgufFamily, layers: list[LayerFacts]) -> dict[str, Any]:
    """The settings of the file by name; a list where layers differ."""
    config, size = text_config(model.network), layers[0].head_size
    embedding, context = model.network.get_input_embeddings(), config.max_position_embeddings
    own: dict[str, Any] = {
        "block_count": len(layers),
        "context_length": min(context, window_of(model.network) or context),
        "embedding_length": embedding.embedding_dim,
        "feed_forward_length": [one.width_there for one in layers],
        "attention.head_count": [one.kv_heads_there * one.group for one in layers],
        "attention.head_count_kv": [one.kv_heads_there for one in layers],
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "vocab_size": embedding.num_embeddings,
    }
    own |= {name: float(getattr(config, value)) for name, value in family.multipliers.items()}
    if family.name != UNEVEN:
        own = {name: v[0] if isinstance(v, list) else v for name, v in own.items()}
    general = {"name": without_paths(model.name)}
    for name, text in licence(model.folder).items():
        general[name.replace("license_", "license.")] = str(text)
    return {
        **{f"general.{name}": value for name, value in general.items()},
        **{f"{family.name}.{name}": value for name, value in own.items()},
        **vocabulary(model.tokenizer, embedding.num_embeddings),
    }


def _write(
    model: LoadedModel, path: Path, family: GgufFamily, kind: str, settings: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    """Write the file; returns the shapes of its tensors."""
    import gguf
    from numpy import dtype

    def tensors() -> Iterator[tuple[str, Tensor]]:
        if factors := rotary_factors(model.network):
            yield "rope_freqs.weight", torch.tensor(factors, dtype=torch.float32)
        names = ("feed_forward_length", "attention.head_count_kv")
        even = (None if family.plain else settings[f"{family.name}.{name}"] for name in names)
        yield from named_tensors(model.network, family, *even)

    writer = gguf.GGUFWriter(path, family.name)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    whole = "ALL" if kind == "F32" else "MOSTLY"
    writer.add_file_type(gguf.LlamaFileType[f"{whole}_{kind}"])
    for name, value in settings.items():
        _add(writer, name, value)
    shapes = []
    for name, tensor in tensors():
        stored = _stored_as(tensor, kind)
        _refuse_infinite(name, tensor, stored.name)
        block, nbytes = gguf.GGML_QUANT_SIZES[stored]
        shapes.append(tuple(tensor.shape))
        size = tensor.numel() // block * nbytes
        writer.add_tensor_info(name, shapes[-1], dtype("float32"), size, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, tensor in tensors():
        array = tensor.detach().float().cpu().contiguous().numpy()
        writer.write_tensor_data(gguf.quantize(array, _stored_as(tensor, kind)))
    writer.close()
    return shapes


def _refuse_infinite(name: str, tensor: Tensor, stored: str) -> None:
    """Raise InputError where a tensor would hold NaN or infinity once it is stored as this type."""
    most, limit = float(tensor.detach().abs().max()), _LARGEST[stored]
    if not most <= limit:  # nor where it is NaN
        raise InputError(
            f"{name} holds {most:.6g}, which {stored} cannot: it ends at {limit:.6g}. Choose "
            "--type bf16 or f32; where it is NaN or infinite, the model is damaged."
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


def _stored_as(tensor: Tensor, kind: str) -> Any:
    """ggml's type of a tensor [...]: vectors are float32, rows that are no whole blocks float16."""
    import gguf

    if tensor.dim() < 2:
        return gguf.GGMLQuantizationType.F32
    return gguf.GGMLQuantizationType["F16" if kind == "Q8_0" and tensor.shape[1] % _BLOCK else kind]


def _notes(
    model: LoadedModel, layers: list[LayerFacts], kind: str, shapes: list[tuple[int, ...]]
) -> Iterator[str]:
    """What was done to a model, and what of its savings is lost with it."""
    yield from Changes(
        "file",
        factored=sum(one.factored for one in layers),
        narrowed=sum(one.narrowed for one in layers),
        heads=Filled.of([(one.kv_heads, one.kv_heads_there) for one in layers]),
        widths=Filled.of([(one.width, one.width_there) for one in layers]),
        parameters=(model.size.parameters, sum(map(prod, shapes))),
        cached=(sum(one.cached for one in layers), sum(one.cached_there for one in layers)),
    ).clauses()
    odd = sum(len(shape) > 1 and shape[1] % _BLOCK > 0 for shape in shapes)
    if kind == "q8_0" and odd:
        yield f"{odd} matrices are f16, since their rows are no multiple of {_BLOCK}"
    if window := window_of(model.network):
        yield f"the context is that of the sliding window, {window:,}"
