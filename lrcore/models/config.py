"""Reading and writing of a model folder's config.json.

The config of a compressed model has the model_type of its family with a prefix, such as
"lowrank_llama". Otherwise transformers would build the dense network of the family and fill missing
weights with random numbers.
"""

import contextlib
import copy
import math
import re
import threading
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)
from transformers.utils import logging

from ..system.as_json import json_text
from ..system.errors import InputError, quoted, shown, with_article
from ..system.resource_errors import raise_shortage
from .architectures import ARCHITECTURES, MULTIMODAL, UNSUPPORTED_FAMILIES, config_architecture
from .by_structure import is_causal, refusal
from .per_layer import DENSE_SIZES_KEY, PER_LAYER_FIELD
from .quantized import CONFIG_KEYS, check_quantization
from .weights import read_json

CONFIG = "config.json"
TYPE_PREFIX = "lowrank_"  # prefix of the family in the model_type of a compressed model
ROW_ALIGNMENT = 16  # bytes; rows in PyTorch's grouped product must start at multiples of this
# transformers allocates lists of these lengths before it reads any weight, so a damaged config
# could exhaust the memory.
MAX_LAYERS = 10_000
MAX_LABELS = 2**20
FRACTION_FIELDS = ("partial_rotary_factor", "rotary_pct")
DEPTH_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Numbers of layers for multi-token prediction (MTP), which follow the decoder layers
EXTRA_LAYER_FIELDS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
# Fields that an export adds, for its modeling file and for programs that read the config only
EXPORT_FIELDS = (
    "architectures",
    "auto_map",
    "lowrank",
    PER_LAYER_FIELD,
    "allow_global_per_layer_attribute_access",
)
T = TypeVar("T")
# Names of tensors of a language model, inside a multimodal model or alone, and the part of the name
# that a language model alone lacks
_INSIDE = re.compile(r"\blanguage_model\.")
_LANGUAGE_MODEL = re.compile(
    r"(model\.)?(language_model|layers|embed_tokens\w*|per_layer_\w+|norm|lm_head|mtp)\."
)
_BUILD_LOCK = threading.RLock()  # held by the thread that builds a network


def compressed_type(family: str) -> str:
    """Return the model_type of a compressed model of a family."""
    return TYPE_PREFIX + family


def has_compressed_type(folder: Path) -> bool:
    """Return True if a folder's config.json has the model_type of a compressed model."""
    path = folder / CONFIG
    return path.is_file() and str(read_json(path).get("model_type")).startswith(TYPE_PREFIX)


def extra_layers(folder: Path) -> int:
    """Return the number of layers for multi-token prediction that a folder's config.json declares.

    No network has them: their weights are left out, and `read_config` sets the number to 0.
    """
    values = read_json(folder / CONFIG)
    parts = [part for part in (values, values.get("text_config")) if isinstance(part, Mapping)]
    counts = [part.get(name) for part in parts for name in EXTRA_LAYER_FIELDS]
    return max((count for count in counts if isinstance(count, int)), default=0)


def _without_extra_layers(config: PretrainedConfig) -> PretrainedConfig:
    """Set the number of layers for multi-token prediction to 0 in a config and its text config."""
    for part in (config, config.get_text_config()):
        for name in EXTRA_LAYER_FIELDS:
            if getattr(part, name, None):
                setattr(part, name, 0)
    return config


def read_config(folder: Path) -> PretrainedConfig:
    """Return the config of a supported family; for a compressed model, the config of its family.

    Layers for multi-token prediction and quantization are not declared in it: the weights are
    dequantized when they are read.

    Raises InputError for a missing, damaged or unsupported config.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(
            f"'{folder}' is not a model folder: it has no config.json. Give the folder that holds "
            "config.json and *.safetensors, or name a GGUF file in it: FOLDER/FILE.gguf."
        )
    values = read_json(path)
    family = _family(values.get("model_type"), str(path))
    _check_depth(values, path)
    _check_numbers(values, path)
    check_quantization(values, path)
    try:
        with quiet():
            config = _read_family_config(folder, family, values)
            # A config may name kernels on the hub, which are code.
            config._attn_implementation = config._experts_implementation = None
            config.output_attentions = config.output_hidden_states = False  # never read
    except Exception as error:  # transformers raises exceptions of many types
        raise_shortage(error)
        raise InputError(
            f"'{path}' is not a valid {family} config ({error_line(error)}). Copy it again."
        ) from error
    _check_language_model(config, family, str(path))
    for part in (config, config.get_text_config()):
        for key in CONFIG_KEYS:
            vars(part).pop(key, None)
    return _without_extra_layers(config)


def _check_depth(values: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if a config, or a nested config, claims more layers than any model has."""
    for part in (values, *(value for value in values.values() if isinstance(value, Mapping))):
        kinds = part.get("attention_types")  # GPT-Neo: [[kinds, number of repetitions], ...]
        kinds = kinds if isinstance(kinds, list) else []
        repetitions = [entry[-1] for entry in kinds if isinstance(entry, list) and entry]
        for name, count in [(name, part.get(name)) for name in DEPTH_FIELDS] + [
            ("attention_types", count) for count in repetitions
        ]:
            if isinstance(count, int | float) and count > MAX_LAYERS:
                raise InputError(
                    f"'{path}': {name} is {count}, but models have at most {MAX_LAYERS:,} layers. "
                    "The file is damaged: copy it again."
                )
        labels = part.get("num_labels")
        if isinstance(labels, int | float) and labels > MAX_LABELS:
            raise InputError(
                f"'{path}': num_labels is {labels}, more than any classifier has. The file is "
                "damaged: copy it again."
            )


def _check_numbers(values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
    """Raise InputError if a config field is NaN or infinite, or if a fraction is not a number."""
    for name, value in values.items():
        if name in FRACTION_FIELDS and not isinstance(value, int | float | None):
            raise InputError(
                f"'{path}': {prefix}{name} is {shown(value)}, but must be a number. The file is "
                "damaged: copy it again."
            )
        if isinstance(value, Mapping):
            _check_numbers(value, path, f"{prefix}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputError(
                f"'{path}': {prefix}{name} is {value}, but must be finite. The file is damaged: "
                "copy it again."
            )


def language_model_alone(
    config: PretrainedConfig, stored: dict[str, T]
) -> tuple[PretrainedConfig, dict[str, T]]:
    """Return config and tensors of the language model if the files hold no other part of a
    multimodal model, and otherwise the arguments.

    stored: tensors by name. Fine-tuned language models are often saved with the config of the
    multimodal model. The tensors are named as in the causal language model.
    """
    text: PretrainedConfig = config.get_text_config()
    has_causal_model = text.model_type in ARCHITECTURES and is_causal(text.model_type)
    is_alone = config.model_type in MULTIMODAL and all(map(_LANGUAGE_MODEL.match, stored))
    if not (has_causal_model and is_alone):
        return config, stored
    return text, {_INSIDE.sub("", name, count=1): tensor for name, tensor in stored.items()}


def family_config(config: PretrainedConfig, name: str) -> PretrainedConfig:
    """Return a copy of the config of a network in memory; for an export, the config of its family.

    Raises InputError for an unsupported family.
    """
    family = _family(config.model_type, name)
    copied = copy.deepcopy(config)
    if config.model_type != family:
        copied = _dense_config(family, config.to_dict())
    _check_language_model(copied, family, name)
    return _without_extra_layers(copied)


def _family(model_type: Any, where: str) -> str:
    """Return the family of a model_type, without the prefix of compressed models."""
    family = str(model_type).removeprefix(TYPE_PREFIX)
    reason = UNSUPPORTED_FAMILIES.get(family.removesuffix("_text"))
    is_known = family in ARCHITECTURES or family in MULTIMODAL
    if not is_known and (reason or not is_causal(family)):
        supported = ", ".join([*ARCHITECTURES, *MULTIMODAL])
        raise InputError(
            f"Model family {quoted(str(model_type))} (model_type in '{where}') is not supported"
            f"{f': {reason}' if reason else ''}. Supported: {supported}."
        )
    return family


def _read_family_config(folder: Path, family: str, values: Mapping[str, Any]) -> PretrainedConfig:
    if values["model_type"] == family and "lowrank" not in values:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return _dense_config(family, values)


def _dense_config(family: str, values: Mapping[str, Any]) -> PretrainedConfig:
    """Return the config of the dense model of an export or a checkpoint."""
    dropped, sizes = set(EXPORT_FIELDS), {}
    if "lowrank" in values:  # the sizes of the dense layers, not of the compressed layers
        dense = values["lowrank"].get(DENSE_SIZES_KEY)
        sizes = {} if dense is None else {PER_LAYER_FIELD: dense}
    else:
        dropped.discard(PER_LAYER_FIELD)
    fields = {name: value for name, value in values.items() if name not in dropped}
    if isinstance(text := fields.get("text_config"), Mapping):
        fields["text_config"] = {n: value for n, value in text.items() if n not in dropped} | sizes
    else:
        fields |= sizes
    return CONFIG_MAPPING[family].from_dict(_with_floats(fields | {"model_type": family}))


def _with_floats(value: Any) -> Any:
    """Replace {"__float__": "Infinity"} in a config by the number, as transformers does."""
    if isinstance(value, Mapping):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {name: _with_floats(part) for name, part in value.items()}
    return [_with_floats(part) for part in value] if isinstance(value, list) else value


def _check_language_model(config: PretrainedConfig, family: str, path: str) -> None:
    """Raise InputError if the language model of a config is missing or not supported.

    path: file or name of the model, for messages.
    """
    text = config.get_text_config()
    if not isinstance(text, PretrainedConfig):
        raise InputError(
            f"'{path}': the config of {with_article(family)} model lacks the config of its "
            "language model. The file is damaged: copy it again."
        )
    architecture = config_architecture(text)
    has_no_row = family in MULTIMODAL or not is_causal(text.model_type)
    if architecture.is_inferred and (has_no_row or refusal(text)):
        reason = "it has no row in the table of families" if has_no_row else refusal(text)
        raise InputError(
            f"'{path}': the language model of this {family} is {with_article(text.model_type)}, "
            f"which is not supported: {reason}."
        )
    for name in architecture.requires:
        value = reduce(lambda value, part: getattr(value, part, None), name.split("."), text)
        supported = architecture.supported(name)
        # None, False, 0 and "" all mean that a feature is switched off.
        if all(value != choice and (value or choice) for choice in supported):
            raise InputError(
                f"'{path}': {with_article(family)} model with {name} {value!r} is not supported, "
                f"only with {' or '.join(map(repr, supported))}."
            )
    _check_shared_keys(text, path)
    latents = "kv_b" in (architecture.factors or ())
    if latents and text.num_key_value_heads not in (None, text.num_attention_heads):
        raise InputError(
            f"'{path}': num_key_value_heads is {text.num_key_value_heads}, but latent attention in "
            f"{with_article(family)} model has a key and a value per query head "
            f"({text.num_attention_heads}). The file is damaged: copy it again."
        )


def _check_shared_keys(text: PretrainedConfig, path: str) -> None:
    """Raise InputError if layers would reuse keys and values that no earlier layer has."""
    shared = getattr(text, "num_kv_shared_layers", None) or 0
    if not shared:
        return
    if not getattr(text, "hidden_size_per_layer_input", True):
        raise InputError(
            f"'{path}': num_kv_shared_layers is {shared} and hidden_size_per_layer_input 0, which "
            "transformers does not support: only models with embeddings per layer share keys."
        )
    first = max(text.num_hidden_layers - shared, 0)
    if lacking := sorted(set(text.layer_types[first:]) - set(text.layer_types[:first])):
        raise InputError(
            f"'{path}': num_kv_shared_layers is {shared}, but no layer before the last {shared} is "
            f"of the type {', '.join(lacking)}, so there are no keys and values to reuse. The file "
            "is damaged: copy it again."
        )


def write_config(
    network: PreTrainedModel, folder: Path, is_compressed: bool, **fields: Any
) -> None:
    """Write config.json into an existing folder.

    is_compressed: write the model_type of a compressed model. fields: additional fields.
    """
    network.config.save_pretrained(folder)
    values = read_json(folder / CONFIG) | {"architectures": [type(network).__name__]}
    if is_compressed:
        values["model_type"] = compressed_type(network.config.model_type)
    text = json_text(values | fields, indent=2)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def experts_options(config: PretrainedConfig, dtype: torch.dtype | str) -> dict[str, str]:
    """Return the option of transformers for the experts of a model.

    PyTorch's grouped product does not support float64 and needs rows that start at multiples of 16
    bytes; other models run with "eager". dtype: as for `from_pretrained`.
    """
    text = config.get_text_config()
    if not config_architecture(text).experts:
        return {}
    stored = text.dtype if dtype == "auto" else dtype
    computed = stored if isinstance(stored, torch.dtype) else torch.float32
    width = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    sizes = (text.hidden_size, width)
    aligned = all(size * computed.itemsize % ROW_ALIGNMENT == 0 for size in sizes)
    return {} if aligned and computed != torch.float64 else {"experts_implementation": "eager"}


def auto_class(config: PretrainedConfig) -> type[Any]:
    """Return the Auto class of transformers that builds a network from a config.

    The causal class of some multimodal families (Qwen3.5) lacks the vision tower.
    """
    family = config.model_type
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family)
    is_complete = causal == MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(family, causal)
    if causal is not None and (is_complete or family not in MULTIMODAL):
        return cast(type, AutoModelForCausalLM)
    return cast(type, AutoModelForImageTextToText)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and warnings of transformers, and serialize threads.

    Wrap all code that builds a network. While it builds a network, transformers replaces functions
    of torch and of transformers in the entire process, and later restores the saved functions.
    Two threads at once would save each other's replacements, and all later models would lack their
    tied weights.
    """
    with _BUILD_LOCK:
        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()


@contextlib.contextmanager
def without_initialization() -> Iterator[None]:
    """Skip the initialization of networks that are built in the context; implies `quiet`."""
    with quiet(), no_init_weights():
        yield


def error_line(error: Exception) -> str:
    """Return the message of a library's error in a line of at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300] or type(error).__name__
