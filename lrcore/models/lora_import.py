"""Conversion of a LoRA adapter and its base model to a model folder in the cache.

PEFT merges the adapter once, and the result is then loaded like any other model.
"""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..system.as_json import json_text
from ..system.errors import InputError, shown
from ..system.files import cache_folder, cache_key, write_text
from ..system.resource_errors import raise_shortage
from .config import error_line, quiet
from .gguf_import import DESCRIPTION
from .hub import ADAPTER, ADAPTER_WEIGHTS
from .weights import INDEX, SINGLE, check_complete, file_hash, read_json

FORMAT = 1  # of the folder; a new number makes every adapter be merged again


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter, and no weights of a model."""
    has_weights = any((folder / name).exists() for name in (SINGLE, INDEX))
    return (folder / ADAPTER).is_file() and not has_weights


def adapter_base(folder: Path) -> tuple[str, str | None]:
    """Return name and revision of the base model of a LoRA adapter.

    Raises InputError for adapters of other types, without a base or without safetensors, and if
    PEFT is not installed.
    """
    values = read_json(folder / ADAPTER)
    base, revision = values.get("base_model_name_or_path"), values.get("revision")
    if values.get("peft_type") != "LORA" or not isinstance(base, str) or not base:
        raise InputError(
            f"'{folder}' is an adapter of type {shown(values.get('peft_type'))} for the base "
            f"{shown(base)}; only LoRA adapters with a named base are merged. Merge it with peft "
            "(merge_and_unload) and save the model."
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise InputError(
            f"'{folder}' lacks {ADAPTER_WEIGHTS}, the weights of its adapter. Save the adapter as "
            "safetensors."
        )
    check_complete(folder / ADAPTER_WEIGHTS)
    if find_spec("peft") is None:
        raise InputError(
            f"'{folder}' is a LoRA adapter of '{base}'. Install PEFT to merge it: pip install "
            "-r requirements-lora.txt."
        )
    return base, revision if isinstance(revision, str) else None


def merged_folder(folder: Path, base: str, dtype: str) -> Path:
    """Return the path in the cache for an adapter merged into a base.

    base: fingerprint of the base model. dtype: of the merged weights.
    """
    hashes = [file_hash(folder / name) for name in (ADAPTER, ADAPTER_WEIGHTS)]
    return cache_folder() / "adapters" / cache_key("adapter", FORMAT, *hashes, base, dtype)


def write_merged(
    folder: Path,
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    draft: Path,
) -> None:
    """Merge an adapter into the network of its base and write the model to an existing folder.

    W + scale B A is computed in the dtype of the network and stored as `dtype`. Raises InputError
    if the adapter does not belong to the network.
    """
    from peft import LoraConfig, PeftModel

    values = read_json(folder / ADAPTER)
    base = str(values["base_model_name_or_path"])
    # a module of this name would be imported
    values |= {"megatron_config": None, "megatron_core": None, "inference_mode": True}
    try:
        with quiet(), warnings.catch_warnings(action="ignore"):
            with torch.random.fork_rng(devices=[]):  # the first values of an adapter are random
                model: Any = PeftModel(network, LoraConfig.from_peft_type(**values))
            result = model.load_adapter(str(folder), "default")
            _refuse_gaps(folder, base, result.missing_keys, result.unexpected_keys)
            merged = model.merge_and_unload(safe_merge=True).to(dtype)
            merged.save_pretrained(draft)
            tokenizer.save_pretrained(draft)
    except InputError:
        raise
    except Exception as error:  # of many types, from KeyError to errors of torch
        raise_shortage(error)
        raise InputError(
            f"PEFT cannot merge the adapter '{folder}' into '{base}' ({error_line(error)}). Check "
            "that it belongs to this model, or merge it yourself (merge_and_unload)."
        ) from error
    note = f"LoRA adapter merged into {Path(base).name}"
    write_text(draft / DESCRIPTION, json_text({"note": note}) + "\n")


def _refuse_gaps(folder: Path, base: str, missing: list[str], unread: list[str]) -> None:
    """Raise InputError for weights of an adapter that its file lacks or that PEFT does not read."""
    if missing or unread:
        state = f"lacks '{missing[0]}'" if missing else f"holds '{unread[0]}', which PEFT ignores"
        raise InputError(
            f"The adapter '{folder}' {state}. It does not belong to '{base}', or it is damaged."
        )
