"""Saving and loading of compressed models as folders, bit for bit.

    model.safetensors          each tensor once (tied weights under their first name)
    config.json                of the dense model, with another model_type (see models/config.py)
    generation_config.json, tokenizer files
    lrcore.json                format, base model, structure of the replaced modules, tied tensors
    recipe.json                the recipe
    ranks.csv, report.json     the ranks and the history
    nested.json, nested.safetensors   of a nested checkpoint, see nested.py

Only this package can read the folder, since no config of a model family describes its layers.
"""

import copy
import csv
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.config import CONFIG, read_config, write_config
from ..models.gguf_import import discard_dequantized, model_note
from ..models.in_memory import empty_compressed, load_in_memory
from ..models.load import (
    LoadedModel,
    check_offloaded,
    empty_network,
    load_folder,
    model_folder,
    move_to,
    read_tokenizer,
    resolve_device,
    resolve_dtype,
)
from ..models.offload import map_weights, return_freed_memory
from ..models.structure import structure, untied
from ..models.weights import (
    INDEX,
    check_finite,
    check_layers,
    count_nonfinite,
    fingerprint,
    read_json,
    weight_files,
)
from ..recipes.provenance import Provenance
from ..system.as_json import json_text
from ..system.errors import InputError, ResourceError, with_article
from ..system.files import MARK, OFFLOADED, cache_folder, folder_draft_of
from ..system.path_access import expanded
from ..system.resource_errors import raise_shortage
from ..system.tensor_files import StoredTensor, as_dtype, stored_in, write_tensors
from .card import license_fields
from .nested import Nested, cut_model, write_nested
from .output_folder import check_output_folder

FORMAT = 2  # of lrcore.json
SHARD = "5GB"
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


class CutTo(TypedDict, total=False):
    """The ratio that a nested checkpoint is cut to."""

    ratio: float | None


@dataclass(frozen=True)
class Description:
    """Structure of a compressed model.

    dtype: of the stored numbers. structure: the replaced modules, as for `install`. tied: a tensor
    with several names is stored under its first name; {other name: first name}. None if unknown.
    """

    dtype: str
    structure: dict[str, Any]
    tied: dict[str, str] | None = None

    def tied_in(self, network: PreTrainedModel, names: Collection[str]) -> dict[str, str]:
        """Return {other name: stored name} of the network's tensors with several names.

        names: the names in the weight files.
        """
        if self.tied is not None:
            return self.tied
        state = network.state_dict(keep_vars=True)
        first = {id(tensor): name for name, tensor in state.items() if name in names}
        same = {name: first[id(tensor)] for name, tensor in state.items() if id(tensor) in first}
        # The head of an empty network is not tied to the embeddings yet.
        for first_name, second_name in network.all_tied_weights_keys.items():
            if second_name in names:
                same[first_name] = second_name
            else:
                same[second_name] = first_name
        return {n: stored for n, stored in same.items() if n not in names and stored in names}


def is_described(folder: Path) -> bool:
    """Return True if a folder describes replaced modules."""
    if (folder / MARK).is_file():
        return True
    config = folder / CONFIG
    return config.is_file() and "lowrank" in read_json(config)


def read_description(folder: Path) -> Description:
    """Read the description in a folder. Raises InputError if it cannot be read."""
    if (folder / MARK).is_file():
        return _read_mark(folder)
    config = read_json(folder / CONFIG)
    try:
        structure = config["lowrank"]["layers"]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"'{folder / CONFIG}' has no compressed layers under 'lowrank'. The file was changed "
            "or truncated: copy the folder again."
        ) from error
    return Description(config.get("dtype") or config.get("torch_dtype") or "float32", structure)


def _read_mark(folder: Path) -> Description:
    described = read_json(folder / MARK)
    version = described.get("format")
    if version != FORMAT:
        raise InputError(
            f"'{folder}' has checkpoint format {version!r}, but this version reads {FORMAT}. Use "
            "the version that wrote it, or make the model again from its recipe: lrcore compress "
            f"--recipe '{folder / 'recipe.json'}' --out FOLDER."
        )
    missing = [key for key in ("dtype", "structure", "tied") if key not in described]
    if missing:
        raise InputError(
            f"'{folder / MARK}' lacks {', '.join(missing)}. The file was changed or truncated: "
            "copy the checkpoint again."
        )
    return Description(described["dtype"], described["structure"], described["tied"])


def load(
    name: str | Path | PreTrainedModel,
    revision: str | PreTrainedTokenizerBase | None = None,
    dtype: str | None = None,
    device: str = "auto",
    offload: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **cut: Unpack[CutTo],
) -> LoadedModel:
    """Load a built-in model, a folder, a GGUF file, a model on the hub, or a model in memory.

    A folder written by `save`, or by transformers from an export, is loaded as the compressed
    model.

    name: name, path or hub id; or a network of transformers: `load(network, tokenizer)`. revision:
    of a hub id. dtype None: float32 for a dense model, the stored dtype for a checkpoint, unchanged
    in memory. offload: decoder layers stay on disk and are read when they are used, so that a model
    larger than memory can be calibrated, compressed and saved; all results are the same to the bit.
    ratio: cut a nested checkpoint to the next of its ratios that removes as much; None: the
    smallest of them. Raises InputError for any problem with the model's files, and for a ratio if
    the model has no nested checkpoint or another range of ratios.
    """
    return cut_model(_load(name, revision, dtype, device, offload, tokenizer), **cut)


def _load(
    name: str | Path | PreTrainedModel,
    revision: str | PreTrainedTokenizerBase | None,
    dtype: str | None,
    device: str,
    offload: bool,
    tokenizer: PreTrainedTokenizerBase | None,
) -> LoadedModel:
    """Load a model as `load` does, without a cut."""
    if isinstance(revision, PreTrainedTokenizerBase):  # load(network, tokenizer)
        revision, tokenizer = None, revision
    if isinstance(name, PreTrainedModel):
        if tokenizer is None or offload:
            raise InputError(
                "A model in memory needs its tokenizer, load(network, tokenizer), and cannot be "
                "offloaded. Give its folder to offload it."
            )
        return load_in_memory(name, tokenizer, dtype, device)
    if not isinstance(name, str | Path):
        raise InputError(
            f"Cannot load {with_article(type(name).__name__)}. Give a name or folder, or a "
            "transformers model with its tokenizer; merge adapters first (merge_and_unload)."
        )
    if tokenizer is not None:
        raise InputError(f"'{name}' has a tokenizer. Give a tokenizer only with a model in memory.")
    name, version = str(name), None if revision is None else str(revision)
    dense = "float32" if dtype is None else dtype
    folder = model_folder(name, version, dense)
    try:
        if is_described(folder):
            stored = "auto" if dtype is None else dtype
            return load_checkpoint(folder, stored, device, name, offload)
        return load_folder(folder, name, dense, device, offload)
    except InputError as error:
        if isinstance(error, ResourceError) or not discard_dequantized(folder):
            raise
    folder = model_folder(name, version, dense)  # converts a GGUF file or merges an adapter again
    return load_folder(folder, name, dense, device, offload)


def save(model: LoadedModel | Nested, folder: str | Path, overwrite: bool = False) -> Path:
    """Write a model, or a nested checkpoint, to a folder and return the folder.

    The folder is written under a temporary name and then renamed, so it is never incomplete. A
    checkpoint in the folder is replaced. InputError is raised for any other folder that is not
    empty, unless overwrite is set, which deletes its contents.
    """

    def write(draft: Path) -> None:
        if isinstance(model, LoadedModel):
            write_checkpoint(model, draft)
            return
        write_checkpoint(model.model, draft)
        write_nested(model, draft, _check_to_save)

    return write_folder(folder, overwrite, write)


def write_folder(folder: str | Path, overwrite: bool, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a temporary folder, then rename it to `folder`.

    Raises InputError for the same folders as `save`.
    """
    folder = expanded(folder).absolute()
    check_output_folder(folder, overwrite)
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
    """Load a compressed model from a folder written by `save`, or by transformers from an export.

    With dtype "auto" the logits are bit-identical to the saved model. Raises InputError if
    the folder has no readable checkpoint.
    """
    folder, target, requested = Path(folder), resolve_device(device), resolve_dtype(dtype)
    described = read_description(folder)
    config, files, tokenizer = read_config(folder), weight_files(folder), read_tokenizer(folder)
    check_layers(folder, config.get_text_config(), len(stored_in(files)))
    stored = resolve_dtype(described.dtype)
    assert isinstance(stored, torch.dtype)  # a checkpoint never has "auto"
    new_dtype = None if isinstance(requested, str) or requested == stored else requested
    if offload:
        _check_separate_layers(folder, described)
        return_freed_memory()
    try:
        network = empty_compressed(config, stored, described.structure)
        if offload:
            tensors = _map_layers(network, files, described, new_dtype, target)
        else:
            state = _state(network, files, described, new_dtype)
            network.load_state_dict(state, strict=True, assign=True)
    except (
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # errors of torch and transformers for inconsistent shapes
        raise_shortage(error)
        detail = (str(error).splitlines() or [""])[-1].strip()
        raise InputError(
            f"The weights in '{folder}' do not match its description ({detail}). The folder mixes "
            "files of two checkpoints."
        ) from error
    if offload:
        check_offloaded(network, tensors, folder)
    else:
        network.tie_weights()
        check_finite(network.state_dict().items(), folder, network.dtype)
        move_to(network, target)
    provenance = read_provenance(folder)
    return LoadedModel(
        name or str(folder),
        network,
        tokenizer,
        fingerprint(folder, files),
        folder,
        provenance.history,
        provenance.base,
        provenance.account,
        model_note(folder),
    )


def read_provenance(folder: Path) -> Provenance:
    """Return the provenance in a folder's report; empty without a report.

    Raises InputError for a report that cannot be read.
    """
    report = folder / "report.json"
    return Provenance.from_dict(read_json(report)) if report.is_file() else Provenance()


def _check_separate_layers(folder: Path, described: Description) -> None:
    """Raise InputError if layers share tensors, which offloading does not support."""
    entries = (
        entry for layer in described.structure.values() for entry in layer["projections"].values()
    )
    if any("down_at" in entry for entry in entries):
        raise InputError(
            f"Layers of '{folder}' share a basis, so they cannot be offloaded separately. Load it "
            "without offload."
        )


def _map_layers(
    network: PreTrainedModel,
    files: list[Path],
    described: Description,
    dtype: torch.dtype | None,
    device: torch.device,
) -> dict[str, StoredTensor]:
    """Leave the layers of an empty network on disk; return the stored tensors.

    Raises ValueError if the tensors do not match the network.
    """
    stored = stored_in(files)
    stored = as_dtype(stored, dtype) if dtype else stored
    stored |= {name: stored[first] for name, first in described.tied_in(network, stored).items()}
    gaps = map_weights(network, stored, device, cache_folder() / OFFLOADED)
    for names in gaps.values():
        if names:
            raise ValueError(
                f"{len(names)} tensors are missing, unread or of another shape, first {names[0]}"
            )
    return stored


def _state(
    network: PreTrainedModel,
    files: list[Path],
    described: Description,
    dtype: torch.dtype | None,
) -> dict[str, Tensor]:
    """Return all tensors by name, as aligned copies that are independent of the files."""
    stored = {name: tensor for file in files for name, tensor in load_file(file).items()}
    state = {
        name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor.clone()
        for name, tensor in stored.items()
    }
    tied = described.tied_in(network, state).items()
    return state | {name: state[first] for name, first in tied if first in state}


def write_checkpoint(model: LoadedModel, folder: Path, shard: str = SHARD) -> None:
    """Write the files of a checkpoint into an existing folder.

    Weights larger than `shard` are split into several files with an index.
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
        "licence": license_fields(model.folder),
        "note": model.note,
    }
    write_weights(state, folder, shard)
    write_config(network, folder, is_compressed=not _is_native(network))
    write_companions(model, folder)
    write_json(folder / MARK, described)
    if model.history:
        write_json(folder / "report.json", model.provenance.to_dict())
    if model.recipe is not None:
        write_json(folder / "recipe.json", model.recipe.to_dict())
    if model.ranks:
        _write_csv(folder / "ranks.csv", [asdict(row) for row in model.ranks])


def _is_native(network: PreTrainedModel) -> bool:
    """Return True if transformers builds exactly these modules from the network's config."""
    with torch.device("meta"):
        native = empty_network(copy.deepcopy(network.config), network.dtype)
    return structure(native) == structure(network)


def write_companions(model: LoadedModel, folder: Path) -> None:
    """Write generation config and tokenizer, and copy the image processor's config files."""
    model.network.generation_config.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    for name in PROCESSORS:
        if (model.folder / name).is_file():
            shutil.copyfile(model.folder / name, folder / name)


def write_weights(
    state: Mapping[str, Tensor | StoredTensor], folder: Path, shard: str = SHARD
) -> None:
    """Write tensors [...] as safetensors: a file, or shards of at most `shard` with an index.

    Stored tensors are read once, one at a time. Raises InputError for a tensor with NaN or
    infinity, possibly after other tensors were written; pass the temporary folder of
    `write_folder`.
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
    if count := count_nonfinite(tensor):
        raise InputError(
            f"'{name}' has NaN or infinity ({count:,} of {tensor.numel():,} values), so the model "
            "is not saved. Compress it in dtype float32 or bfloat16, or remove fewer parameters."
        )


def write_json(path: Path, values: Any) -> None:
    path.write_text(json_text(values, indent=2) + "\n", encoding="utf-8")


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, columns)
        writer.writeheader()
        writer.writerows(rows)
