"""A compressed model as a folder, and back, bit for bit.

    model.safetensors   every tensor once (tied weights under their first name)
    config.json         of the dense model, with a model_type of its own (see models/config.py)
    generation_config.json, tokenizer files
    lrcore.json         format, base model, shapes of the replaced modules, which tensors are tied
    recipe.json         what was asked for        ranks.csv, report.json    what came out

The folder needs this package to be read: its layers have shapes that no config of a model family
describes.
"""

import copy
import csv
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..as_json import json_text
from ..errors import InputError, Shortage, with_article
from ..files import MARK, OFFLOADED, cache_folder, folder_draft_of
from ..models.config import read_config, write_config
from ..models.gguf import discard, note_of
from ..models.in_memory import empty_compressed, load_in_memory
from ..models.load import (
    LoadedModel,
    checked,
    empty_network,
    load_folder,
    model_folder,
    move_to,
    read_tokenizer,
    resolve_device,
    resolve_dtype,
)
from ..models.mapped import map_weights
from ..models.offload import free_at_once
from ..models.structure import structure, untied
from ..models.weights import (
    INDEX,
    check_finite,
    check_layers,
    fingerprint,
    nonfinite,
    read_json,
    weight_files,
)
from ..places import expanded
from ..provenance import Provenance
from ..shortage import raise_shortage
from ..tensor_files import StoredTensor, as_dtype, stored_in, write_tensors
from .card import licence
from .description import FORMAT, Description, is_described, read_description
from .out import check_out

SHARD = "5GB"
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def load(
    name: str | Path | PreTrainedModel,
    revision: str | PreTrainedTokenizerBase | None = None,
    dtype: str | None = None,
    device: str = "auto",
    offload: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> LoadedModel:
    """A model by the name of a built-in one, folder, GGUF file or hub id, or of transformers in
    memory, `load(network, tokenizer)`; a folder written by `save`, or by transformers from an
    export, comes back as the compressed model it was.

    revision: of a hub id; of a model in memory, its tokenizer may stand there. dtype None: float32
    for a dense model, as saved for a checkpoint, unchanged in memory. offload: decoder layers wait
    on disk and are read one at a time, so that a model larger than memory can be calibrated,
    compressed and saved; all results are the same to the bit.
    Raises InputError in one line for whatever is wrong.
    """
    given = revision if isinstance(revision, PreTrainedTokenizerBase) else tokenizer
    if isinstance(name, PreTrainedModel):
        if given is None or offload:
            raise InputError(
                "A model in memory needs its tokenizer, load(network, tokenizer), and cannot be "
                "offloaded: give its folder for that."
            )
        return load_in_memory(name, given, dtype, device)
    if not isinstance(name, str | Path):
        raise InputError(
            f"Cannot load {with_article(type(name).__name__)}. Give a name or folder, or a "
            "transformers model with its tokenizer; merge adapters first (merge_and_unload)."
        )
    if given is not None:
        raise InputError(
            f"'{name}' brings its own tokenizer. Give a tokenizer with a model in memory only."
        )
    name, version = str(name), None if revision is None else str(revision)
    dense = "float32" if dtype is None else dtype
    folder = model_folder(name, version, dense)
    if is_described(folder):
        return load_checkpoint(folder, "auto" if dtype is None else dtype, device, name, offload)
    try:
        return load_folder(folder, name, dense, device, offload)
    except InputError as error:
        if isinstance(error, Shortage) or not discard(folder):
            raise
    folder = model_folder(name, version, dense)  # made again, of a GGUF file
    return load_folder(folder, name, dense, device, offload)


def save(model: LoadedModel, folder: str | Path, overwrite: bool = False) -> Path:
    """Write `model` to `folder` and return it.

    The folder appears whole or not at all: it is written beside and then renamed.

    An earlier checkpoint there is replaced. Any other folder that is not empty is refused with
    InputError unless overwrite is set, which deletes what is in it.
    """
    return write_folder(folder, overwrite, lambda draft: write_checkpoint(model, draft))


def write_folder(folder: str | Path, overwrite: bool, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a draft, and put it in the place of `folder` once it is whole.

    Refusals as of `save`.
    """
    folder = expanded(folder).absolute()
    check_out(folder, overwrite)
    with folder_draft_of(folder) as draft:
        write(draft)
    return folder


def load_checkpoint(
    folder: str | Path,
    dtype: str = "auto",
    device: str = "auto",
    name: str | None = None,
    offload: bool = False,
) -> LoadedModel:
    """A compressed model from a folder written by `save`, or by transformers from an export.

    With dtype "auto" its logits are bit-identical to the saved model's. Raises InputError where the
    folder holds no readable checkpoint.
    """
    folder, target, wanted = Path(folder), resolve_device(device), resolve_dtype(dtype)
    described = read_description(folder)
    config, files, tokenizer = read_config(folder), weight_files(folder), read_tokenizer(folder)
    check_layers(folder, config.get_text_config(), len(stored_in(files)))
    stored = resolve_dtype(described.dtype)
    assert isinstance(stored, torch.dtype)  # a checkpoint names one
    into = None if isinstance(wanted, str) or wanted == stored else wanted
    if offload:
        _check_apart(folder, described)
        free_at_once()
    try:
        network = empty_compressed(config, stored, described.structure)
        if offload:
            waiting = _wait(network, files, described, into, target)
        else:
            state = _state(network, files, described, into)
            network.load_state_dict(state, strict=True, assign=True)
    except (
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # whatever shapes that are not ours lead to
        raise_shortage(error)
        detail = (str(error).splitlines() or [""])[-1].strip()
        raise InputError(
            f"The weights in '{folder}' do not fit its description ({detail}). Files of two "
            "checkpoints were mixed."
        ) from error
    if offload:
        checked(network, waiting, folder)
    else:
        network.tie_weights()
        check_finite(network.state_dict().items(), folder, network.dtype)
        move_to(network, target)
    known = read_provenance(folder)
    return LoadedModel(
        name or str(folder),
        network,
        tokenizer,
        fingerprint(folder, files),
        folder,
        known.history,
        known.base,
        known.account,
        note_of(folder),
    )


def read_provenance(folder: Path) -> Provenance:
    """How the model in a folder came to be; nothing where no report tells.

    Raises InputError for a report that cannot be read.
    """
    report = folder / "report.json"
    return Provenance.from_dict(read_json(report)) if report.is_file() else Provenance()


def _check_apart(folder: Path, described: Description) -> None:
    """Raise InputError where layers share tensors, of which each has to be on disk alone."""
    entries = (
        one for layer in described.structure.values() for one in layer["projections"].values()
    )
    if any("down_at" in entry for entry in entries):
        raise InputError(
            f"Layers of '{folder}' share a basis, so they cannot be offloaded one at a time. Load "
            "it without offload."
        )


def _wait(
    network: PreTrainedModel,
    files: list[Path],
    described: Description,
    dtype: torch.dtype | None,
    device: torch.device,
) -> dict[str, StoredTensor]:
    """Leave the layers of an empty network on disk, and say where.

    Raises ValueError where the files hold other tensors than it has.
    """
    stored = stored_in(files)
    stored = as_dtype(stored, dtype) if dtype else stored
    stored |= {name: stored[first] for name, first in described.tied_in(network, stored).items()}
    gaps = map_weights(network, stored, device, cache_folder() / OFFLOADED)
    for names in gaps.values():
        if names:
            raise ValueError(
                f"{len(names)} tensors are missing or of another shape, first {names[0]}"
            )
    return stored


def _state(
    network: PreTrainedModel,
    files: list[Path],
    described: Description,
    dtype: torch.dtype | None,
) -> dict[str, Tensor]:
    """All tensors by name, in memory of their own: aligned, and independent of the file once
    read. Empty permutations, which earlier versions stored, are left out.
    """
    files_of, known = (load_file(file).items() for file in files), network.state_dict().keys()
    stored = {
        name: tensor for own in files_of for name, tensor in own if tensor.numel() or name in known
    }
    state = {
        name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor.clone()
        for name, tensor in stored.items()
    }
    tied = described.tied_in(network, state).items()
    return state | {name: state[first] for name, first in tied if first in state}


def write_checkpoint(model: LoadedModel, folder: Path, shard: str = SHARD) -> None:
    """The files of a checkpoint, in a folder that is there.

    Weights beyond `shard` are split over several files with an index.
    """
    network = model.network
    state, tied = untied(network)
    described = {
        "format": FORMAT,
        "base": model.name if model.base is None else model.base.name,
        "dtype": model.dtype,
        "parameters": model.size.parameters,
        "structure": structure(network),
        "tied": tied,
        "licence": licence(model.folder),
        "note": model.note,
    }
    write_weights(state, folder, shard)
    write_config(network, folder, own=not _is_native(network))
    write_companions(model, folder)
    write_json(folder / MARK, described)
    if model.history:
        write_json(folder / "report.json", model.provenance.to_dict())
    if model.recipe is not None:
        write_json(folder / "recipe.json", model.recipe.to_dict())
    if model.ranks:
        _write_csv(folder / "ranks.csv", [asdict(row) for row in model.ranks])


def _is_native(network: PreTrainedModel) -> bool:
    """Whether transformers makes just such modules of the network's config."""
    with torch.device("meta"):
        native = empty_network(copy.deepcopy(network.config), network.dtype)
    return structure(native) == structure(network)


def write_companions(model: LoadedModel, folder: Path) -> None:
    """What stands beside config and weights and does not change: generation config, tokenizer,
    and how images are prepared.
    """
    model.network.generation_config.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    for name in PROCESSORS:
        if (model.folder / name).is_file():
            shutil.copyfile(model.folder / name, folder / name)


def write_weights(
    state: Mapping[str, Tensor | StoredTensor], folder: Path, shard: str = SHARD
) -> None:
    """Tensors [...] by name as safetensors: one file, or shards of at most `shard` with an index.

    Those on disk are read one at a time, once. folder: a draft, as `write_folder` makes: raises
    InputError where a tensor holds NaN or infinity, after others were written.
    """
    shapes = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in state.items()
    }
    split = split_torch_state_dict_into_shards(
        shapes, max_shard_size=shard, filename_pattern="model{suffix}.safetensors"
    )
    for file, names in split.filename_to_tensors.items():
        tensors = {name: state[name] for name in names}
        write_tensors(folder / file, tensors, {"format": "pt"}, _check_to_save)
    if split.is_sharded:
        write_json(
            folder / INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        )


def _check_to_save(name: str, tensor: Tensor) -> None:
    if count := nonfinite(tensor):
        raise InputError(
            f"'{name}' of the model to be saved holds NaN or infinity ({count:,} of "
            f"{tensor.numel():,} values), so nothing is written. Compress it in dtype float32 or "
            "bfloat16, or remove less."
        )


def write_json(path: Path, values: Any) -> None:
    path.write_text(json_text(values, indent=2) + "\n", encoding="utf-8")


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, columns)
        writer.writeheader()
        writer.writerows(rows)
