"""config.json of a model folder, read and written.

The config of a compressed model has a model_type of its own, such as "lowrank_llama": transformers
would otherwise make the dense network of the family and fill what the files lack with random
numbers.
"""

import contextlib
import copy
import math
import threading
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils import logging

from ..as_json import json_text
from ..errors import InputError, quoted, shown, with_article
from ..shortage import raise_shortage
from .architectures import ARCHITECTURES, MISFITS, MULTIMODAL, architecture_by
from .per_layer import DENSE_SIZES, UNEVEN
from .weights import read_json

CONFIG = "config.json"
OWN_TYPE = "lowrank_"  # before the family in the model_type of a compressed model
ROW = 16  # bytes: what rows of PyTorch's grouped product begin at multiples of
PUBLISHED = ("mxfp4", "fp8")  # quantised as it is published (gpt-oss; DeepSeek-V3)
# Layers that a config may name: transformers makes lists as long before any weight is looked at.
MOST_LAYERS = 10_000
MOST_LABELS = 2**20  # of a classifier: transformers makes a table of them
SHARES = ("partial_rotary_factor", "rotary_pct")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# of an export, for its modeling file and for those who read its config alone
OWN_FIELDS = (
    "architectures",
    "auto_map",
    "lowrank",
    UNEVEN,
    "allow_global_per_layer_attribute_access",
)
_ALONE = threading.RLock()  # of the thread that builds a network


def own_type(family: str) -> str:
    """The model_type that a compressed model of a family has in its config.json."""
    return OWN_TYPE + family


def has_own_type(folder: Path) -> bool:
    """Whether the config.json of a folder has a model_type that only this project writes."""
    path = folder / CONFIG
    return path.is_file() and str(read_json(path).get("model_type")).startswith(OWN_TYPE)


def read_config(folder: Path) -> PretrainedConfig:
    """The config of a supported family; of a compressed model, that of its family.

    Raises InputError for a missing, broken or unsupported one.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(
            f"'{folder}' is no model folder: it has no config.json. Give the folder that holds "
            "config.json and *.safetensors, or name a GGUF file in it: FOLDER/FILE.gguf."
        )
    values = read_json(path)
    family = _family(values.get("model_type"), str(path))
    _check_depth(values, path)
    _check_numbers(values, path)
    _check_quantiser(values, path)
    try:
        with quiet():
            config = _config_of(folder, family, values)
            # A config may name kernels of the hub, which are code.
            config._attn_implementation = config._experts_implementation = None
            config.output_attentions = config.output_hidden_states = False  # nobody reads them
    except Exception as error:  # transformers checks fields with exceptions of many kinds
        raise_shortage(error)
        raise InputError(
            f"'{path}' is no valid {family} config ({one_line(error)}). Copy it again."
        ) from error
    _check_text(config, family, str(path))
    return config


def _check_depth(values: Mapping[str, Any], path: Path) -> None:
    """Raise InputError where a config, or one in it, names more layers than any model has."""
    for part in (values, *(one for one in values.values() if isinstance(one, Mapping))):
        kinds = part.get("attention_types")  # of GPT-Neo: [[kinds, how often], ...]
        kinds = kinds if isinstance(kinds, list) else []
        times = [one[-1] for one in kinds if isinstance(one, list) and one]
        for name, count in [(name, part.get(name)) for name in LAYERS] + [
            ("attention_types", count) for count in times
        ]:
            if isinstance(count, int | float) and count > MOST_LAYERS:
                raise InputError(
                    f"'{path}': {name} is {count}, and no model has more than {MOST_LAYERS:,} "
                    "layers. The file is damaged or made up: copy it again."
                )
        labels = part.get("num_labels")
        if isinstance(labels, int | float) and labels > MOST_LABELS:
            raise InputError(
                f"'{path}': num_labels is {labels}, more than any classifier has. The file is "
                "damaged or made up: copy it again."
            )


def _check_numbers(values: Mapping[str, Any], path: Path, within: str = "") -> None:
    """Raise InputError where a field of a config is NaN or infinite, or a share is no number."""
    for name, value in values.items():
        if name in SHARES and not isinstance(value, int | float | None):
            raise InputError(
                f"'{path}': {within}{name} is {shown(value)}, and must be a number. The file is "
                "damaged or made up: copy it again."
            )
        if isinstance(value, Mapping):
            _check_numbers(value, path, f"{within}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputError(
                f"'{path}': {within}{name} is {value}, and no field of a model is. The file is "
                "damaged or made up: copy it again."
            )


def _check_quantiser(values: Mapping[str, Any], path: Path) -> None:
    """Raise InputError where the weights are said to be quantised in a way that transformers does
    not know: it would read them as they are.
    """
    stored = values.get("quantization_config")
    method = stored.get("quant_method") if isinstance(stored, Mapping) else None
    if method is not None and str(method) not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        raise InputError(
            f"'{path}': the weights are quantised by {method!r}, which transformers "
            f"{transformers.__version__} does not know. Take the model that is not quantised."
        )


def family_config(config: PretrainedConfig, name: str) -> PretrainedConfig:
    """A copy of the config of a network in memory; of an export's, that of its family.

    Raises InputError for an unsupported one.
    """
    family = _family(config.model_type, name)
    copied = copy.deepcopy(config)
    if config.model_type != family:
        copied = _of_family(family, config.to_dict())
    _check_text(copied, family, name)
    return copied


def _family(model_type: Any, where: str) -> str:
    """The family that a model_type names, with or without the prefix of ours."""
    family = str(model_type).removeprefix(OWN_TYPE)
    if family not in ARCHITECTURES and family not in MULTIMODAL:
        known = ", ".join([*ARCHITECTURES, *MULTIMODAL])
        why = MISFITS.get(family.removesuffix("_text"))
        raise InputError(
            f"Model family {quoted(str(model_type))} (model_type in '{where}') is not supported"
            f"{f': {why}' if why else ''}. Supported: {known}."
        )
    return family


def _config_of(folder: Path, family: str, values: Mapping[str, Any]) -> PretrainedConfig:
    if values["model_type"] == family and "lowrank" not in values:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return _of_family(family, values)


def _of_family(family: str, values: Mapping[str, Any]) -> PretrainedConfig:
    """The config of a dense model of a family, from that of an export or a checkpoint."""
    own, sizes = set(OWN_FIELDS), {}
    if "lowrank" in values:  # the sizes that the dense model's layers have, not the export's
        dense = values["lowrank"].get(DENSE_SIZES)
        sizes = {} if dense is None else {UNEVEN: dense}
    else:
        own.discard(UNEVEN)
    kept = {name: value for name, value in values.items() if name not in own}
    if isinstance(text := kept.get("text_config"), Mapping):
        kept["text_config"] = {name: v for name, v in text.items() if name not in own} | sizes
    else:
        kept |= sizes
    return CONFIG_MAPPING[family].from_dict(kept | {"model_type": family})


def _check_text(config: PretrainedConfig, family: str, path: str) -> None:
    text = config.get_text_config()
    if not isinstance(text, PretrainedConfig):
        raise InputError(
            f"'{path}': {with_article(family)} model has no config of text in its config. The file "
            "is damaged or made up: copy it again."
        )
    if text.model_type not in ARCHITECTURES:
        raise InputError(
            f"'{path}': the language model inside this {family} is "
            f"{with_article(text.model_type)}, which is not supported."
        )
    architecture = architecture_by(text)
    for name in architecture.requires:
        value = reduce(lambda value, part: getattr(value, part, None), name.split("."), text)
        known = architecture.supported(name)
        if all(value != one and (value or one) for one in known):
            raise InputError(
                f"'{path}': {with_article(family)} model with {name} {value!r} is not supported, "
                f"only with {' or '.join(map(repr, known))}."
            )
    _check_shared_keys(text, path)
    latents = "kv_b" in (architecture.factors or ())
    if latents and text.num_key_value_heads not in (None, text.num_attention_heads):
        raise InputError(
            f"'{path}': num_key_value_heads is {text.num_key_value_heads}, but from the latents of "
            f"{with_article(family)} model every query head ({text.num_attention_heads}) has keys "
            "and values of its own. The file is damaged or made up: copy it again."
        )


def _check_shared_keys(text: PretrainedConfig, path: str) -> None:
    """Raise InputError where layers would read keys and values that no earlier one has."""
    shared = getattr(text, "num_kv_shared_layers", None) or 0
    if not shared:
        return
    if not text.hidden_size_per_layer_input:
        raise InputError(
            f"'{path}': num_kv_shared_layers is {shared} and hidden_size_per_layer_input 0, which "
            "transformers does not run: only models with embeddings of single layers share keys."
        )
    first = max(text.num_hidden_layers - shared, 0)
    if lacking := sorted(set(text.layer_types[first:]) - set(text.layer_types[:first])):
        raise InputError(
            f"'{path}': num_kv_shared_layers is {shared}, but before the last {shared} layers "
            f"there is none of the kind {', '.join(lacking)}, whose keys and values they could "
            "read. The file is damaged or made up: copy it again."
        )


def write_config(network: PreTrainedModel, folder: Path, own: bool, **fields: Any) -> None:
    """Write config.json into a folder that is there.

    own: with the model_type of a compressed model. fields: further ones.
    """
    network.config.save_pretrained(folder)
    values = read_json(folder / CONFIG) | {"architectures": [type(network).__name__]}
    if own:
        values["model_type"] = own_type(network.config.model_type)
    text = json_text(values | fields, indent=2)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def kernel_of(config: PretrainedConfig) -> str:
    """The attention of transformers that a model runs with."""
    return architecture_by(config.get_text_config()).kernel


def experts_of(config: PretrainedConfig, dtype: torch.dtype | str) -> dict[str, str]:
    """The option of transformers that experts run with: PyTorch's grouped product takes no float64,
    and its rows have to begin at multiples of 16 bytes.

    dtype: as `from_pretrained` takes it.
    """
    text = config.get_text_config()
    if not architecture_by(text).experts:
        return {}
    stored = text.dtype if dtype == "auto" else dtype
    own = stored if isinstance(stored, torch.dtype) else torch.float32
    widths = (text.hidden_size, getattr(text, "moe_intermediate_size", text.intermediate_size))
    whole = all(width * own.itemsize % ROW == 0 for width in widths)
    return {} if whole and own != torch.float64 else {"experts_implementation": "eager"}


def dequantising(config: PretrainedConfig) -> PretrainedConfig:
    """A config as it is read, with the order to dequantise on loading where it is published in one
    of `PUBLISHED`: transformers else does so only where it finds no kernels for these numbers.
    """
    stored = getattr(config, "quantization_config", None)
    if isinstance(stored, dict) and stored.get("quant_method") in PUBLISHED:
        config.quantization_config = stored | {"dequantize": True}
    return config


def auto_class(config: PretrainedConfig) -> type[Any]:
    """The Auto class of transformers that makes a network of a config."""
    if config.model_type in MULTIMODAL:
        return cast(type, AutoModelForImageTextToText)
    return cast(type, AutoModelForCausalLM)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no warnings from transformers: what matters is checked here and
    raised. Around all that builds a network, for one thread at a time: meanwhile transformers has
    functions of its own and of torch changed, in the whole process, and then puts back those that
    it found. Of two threads at once the second would find changed ones, and every later model
    would lack its tied weights.
    """
    with _ALONE:
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
def unfilled() -> Iterator[None]:
    """Networks that are built inside get no weights of their own; `quiet`, and alone as there."""
    with quiet(), no_init_weights():
        yield


def one_line(error: Exception) -> str:
    """What a library's error says, in one line of at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300] or type(error).__name__
