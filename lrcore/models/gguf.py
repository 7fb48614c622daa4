"""A GGUF file becomes a model folder: dequantised once, into the cache, and then loaded like any
other. transformers names the tensors and converts the tokenizer; pickle and code play no part.
"""

import contextlib
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from ..as_json import json_text
from ..cache import hold, trim
from ..errors import InputError
from ..files import (
    MARK,
    cache_folder,
    cache_key,
    folder_draft_of,
    remove_unlocked,
    write_text,
)
from ..locks import Lock
from ..shortage import raise_shortage
from ..tensor_files import write_tensors
from .config import auto_class, family_config, one_line, quiet, write_config
from .gguf_header import VOCABULARY, GgufHeader, read_header
from .weights import SINGLE, file_hash, read_json

ABOUT = "gguf.json"  # in the folder of a dequantised model: which file it is of, and the note
FORMAT = 1  # of the folder; another number makes every file be dequantised again
PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # stored without quantisation
UNEVEN = "deci"  # the architecture whose layers have sizes of their own, which transformers lacks
RARE = 0.01  # of the values: less is not worth a word in the note
_BITS = re.compile(r"(?:I?Q|FP|T)(\d)")
_held: dict[Path, Lock | None] = {}
_made: set[Path] = set()  # by this process


def dequantised(file: Path, dtype: str = "float32", about: str = "") -> Path:
    """The folder of a GGUF file's model, with safetensors of a dtype; made where it is missing.

    Its place follows from the file's contents, the dtype and `about`, so a changed file is made
    anew. dtype: as of `load`; "auto" is the file's own where it is not quantised, float32 elsewhere
    and for "float64". about: what the model's note says before how it was stored.

    Raises InputError where the package gguf is missing, for a damaged file or one of a family that
    is not supported, and where transformers would leave something of the file out.
    """
    if find_spec("gguf") is None:
        raise InputError(
            f"'{file.name}' is a GGUF file, which is read by the package gguf. Install it: pip "
            "install gguf."
        )
    header = read_header(file)
    stored = _stored_dtype(header) if dtype == "auto" else dtype
    stored = "float32" if stored == "float64" else stored
    key = cache_key("gguf", FORMAT, file_hash(file), stored, about)
    folder = cache_folder() / "gguf" / key
    if _is_held(folder):
        return folder
    _made.add(folder)
    while not _is_held(folder):
        # where another process is faster, its folder, which is equal, stays
        with folder_draft_of(folder, keep=ABOUT) as draft:
            _write_model(header, draft, getattr(torch, stored))
            _describe(header, draft, about)
    trim()
    return folder


def discard(folder: Path) -> bool:
    """Delete a dequantised model that cannot be loaded, so that it is made again; whether that was
    done. Not where this process has made it, as the same would come again, nor where another one
    uses it.
    """
    if folder in _made or folder not in _held:
        return False
    lock = _held.pop(folder)
    if lock is not None:
        lock.release()
    return remove_unlocked(folder)


def _is_held(folder: Path) -> bool:
    """Whether a dequantised model is there, which then stays in the cache until this process ends:
    what is made of it reads its files at any time.
    """
    if not (folder / ABOUT).is_file():
        _held.pop(folder, None)
    elif folder not in _held:
        lock = hold(folder, make=False)
        if folder.is_dir():  # it was not evicted in the meantime
            _held[folder] = lock
    return folder in _held


def note_of(folder: Path) -> str:
    """What is to be said with every figure of the model in a folder, dequantised or saved here; ""
    where there is nothing.
    """
    described = next((folder / name for name in (MARK, ABOUT) if (folder / name).is_file()), None)
    return "" if described is None else str(read_json(described).get("note", ""))


def _stored_dtype(header: GgufHeader) -> str:
    """Of the matrices; norms are float32 in every file."""
    kinds = {one.kind for one in header.tensors if len(one.shape) > 1}
    return PLAIN.get(kinds.pop(), "float32") if len(kinds) == 1 else "float32"


def _describe(header: GgufHeader, folder: Path, about: str) -> None:
    """Write what is known of the model beside its weights: the note, and the licence as a card."""
    values = {"file": header.path.name, "note": _note(header, about)}
    if licence := header["general.license"]:
        card = f"---\nlicense: {json_text(str(licence))}\n---\n"
        write_text(folder / "README.md", card)
    write_text(folder / ABOUT, json_text(values, indent=2) + "\n")


def _note(header: GgufHeader, about: str) -> str:
    """How the numbers were stored, those of most values first; after `about`."""
    counts: Counter[str] = Counter()
    for tensor in header.tensors:
        counts[tensor.kind] += tensor.values
    kinds = [kind for kind, count in counts.most_common() if count > RARE * counts.total()]
    lossy = [kind for kind in kinds if kind not in PLAIN]
    if not lossy:
        return about
    bits = _BITS.match(lossy[0].removeprefix("MX").removeprefix("NV"))
    stored = f"dequantised from {bits[1] + ' bits ' if bits else ''}({', '.join(kinds)})"
    return f"{about}, {stored}" if about else stored[0].upper() + stored[1:]


def _write_model(header: GgufHeader, folder: Path, dtype: torch.dtype) -> None:
    """Write config, safetensors and tokenizer of a GGUF file into a folder that is there.

    transformers reads the vocabulary string by string each time it opens a file, which takes
    longer than all the tensors: it gets one part without vocabulary, and one without tensors.
    """
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    _check_family(header)
    _check_depth(header)
    tokens, weights = folder / "tokenizer.gguf", folder / "weights.gguf"
    header.write_part(tokens, tensors=False)
    header.write_part(weights, without=VOCABULARY)
    with _readable(header.path), quiet(), contextlib.redirect_stderr(io.StringIO()):
        config = AutoConfig.from_pretrained(folder, gguf_file=weights.name, local_files_only=True)
        config = family_config(config, header.path.name)
        vars(config).pop("_model_name_or_path", None)  # which is the title in the file
        network = _planned(header, config)
        read = load_gguf_checkpoint(str(weights), True, _Named.of(network), dtype)["tensors"]
        tensors = _all_of(network, read, header.path)
        write_tensors(folder / SINGLE, tensors, {"format": "pt"})
        write_config(network, folder, own=False, dtype=str(dtype).removeprefix("torch."))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=tokens.name)
        tokenizer.save_pretrained(folder)
    for part in (tokens, weights):
        part.unlink()


@dataclass(frozen=True)
class _Named:
    """What transformers' reader asks of a network: the names of its tensors.

    For every module inside a network it makes a table of all names, which takes longer than the
    tensors; here the only one inside is the model below the head.
    """

    config: PretrainedConfig
    tensors: dict[str, Tensor]
    inner: tuple[tuple[str, "_Named"], ...] = ()

    @classmethod
    def of(cls, network: PreTrainedModel) -> "_Named":
        below = cls(network.config, network.base_model.state_dict())
        inner = ((network.base_model_prefix, below),)
        return cls(network.config, network.state_dict(), inner)

    def state_dict(self) -> dict[str, Tensor]:
        return self.tensors

    def named_children(self) -> tuple[tuple[str, "_Named"], ...]:
        return self.inner


def _all_of(network: PreTrainedModel, read: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The tensors of all parameters, tied ones once. Raises InputError for a gap or a misfit."""
    tensors = {}
    for name, parameter in network.named_parameters():
        tensor = read.get(name)
        if tensor is None or tensor.shape != parameter.shape:
            state = "missing" if tensor is None else f"of the shape {list(tensor.shape)}"
            raise InputError(
                f"'{name}', of the shape {list(parameter.shape)} by the header of '{path}', is "
                f"{state} in it. Take the model as safetensors."
            )
        tensors[name] = tensor.contiguous()
    return tensors


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """InputError in the place of whatever transformers raises for a file it cannot read."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of many kinds, from KeyError to errors of numpy
        raise_shortage(error)
        raise InputError(
            f"transformers cannot read the GGUF file '{path}' ({type(error).__name__}: "
            f"{one_line(error)}). Take the model as safetensors."
        ) from error


def _check_family(header: GgufHeader) -> None:
    """Raise InputError for what `export --format gguf` writes of layers of different sizes."""
    if header.architecture == UNEVEN:
        raise InputError(
            f"'{header.path}' is a {UNEVEN}, whose layers have sizes of their own: llama.cpp runs "
            "it, and transformers does not read it from GGUF. Load the checkpoint that it was made "
            "of, or take the model as safetensors."
        )


def _check_depth(header: GgufHeader) -> None:
    """Raise InputError for a part of a model, and for more layers than it has tensors, of which
    transformers would make lists.
    """
    layers = header[f"{header.architecture}.block_count"]
    names = {tensor.name for tensor in header.tensors}
    many = isinstance(layers, int | float) and layers > len(names)
    if many or "token_embd.weight" not in names:
        raise InputError(
            f"'{header.path}' holds {len(names)} tensors, too few for its {layers} layers and "
            "embedding. It is a part of a model, or damaged."
        )


def _planned(header: GgufHeader, config: PretrainedConfig) -> PreTrainedModel:
    """The network of a config on the meta device, with a vocabulary as large as the embedding.

    Raises InputError where it does not have as many values as the file: transformers leaves out
    what it does not know, such as biases of a llama or factors of scaled rotary positions, without
    a word.
    """
    sizes = {tensor.name: tensor for tensor in header.tensors}
    scaling = header[f"{header.architecture}.rope.scaling.type"]
    if scaling not in (None, "none"):
        raise InputError(
            f"'{header.path}' has rotary positions scaled by '{scaling}', which transformers does "
            "not read from GGUF. Take the model as safetensors."
        )
    config.vocab_size = sizes["token_embd.weight"].shape[0]
    with torch.device("meta"), quiet():
        network: PreTrainedModel = auto_class(config).from_config(config)
    wanted = sum(parameter.numel() for parameter in network.parameters())
    held = sum(tensor.values for tensor in sizes.values())
    spare = sizes["output.weight"].values if "output.weight" in sizes else 0
    if held != wanted and (not config.tie_word_embeddings or held - spare != wanted):
        raise InputError(
            f"'{header.path}' holds {held:,} values, but the {config.model_type} that its header "
            f"describes has {wanted:,}: a part is missing, or something transformers does not read "
            "from GGUF would be lost. Take the model as safetensors."
        )
    return network
