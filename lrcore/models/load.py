"""A name becomes a model in memory: safetensors only, no remote code, and one clear line for
whatever is wrong with it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..account import SizeAndCost
from ..errors import InputError, quoted, unknown, with_article
from ..files import OFFLOADED, cache_folder
from ..history import Compressed, S, SlotRank, Step, last_step
from ..memory import free_memory, raise_unless_free
from ..modules.own_tables import own_table
from ..precise import exact_device
from ..provenance import BaseModel, Provenance
from ..recipe import Recipe
from ..shortage import raise_shortage
from ..tensor_files import StoredTensor, as_dtype, stored_in
from .architectures import MULTIMODAL, architecture_by, decoder_layers, text_config
from .config import (
    auto_class,
    dequantising,
    experts_of,
    has_own_type,
    kernel_of,
    one_line,
    quiet,
    read_config,
    unfilled,
)
from .gguf import dequantised, note_of
from .hub import DEMO_MODELS, PACKAGED, built_in_models, locate
from .layers import device_of
from .mapped import map_weights
from .offload import free_at_once, stored_of
from .structure import ModelSize, measure
from .vocabulary import check_growth, check_vocabulary
from .weights import (
    bytes_converted,
    check_claims,
    check_finite,
    check_ties,
    fingerprint,
    weight_files,
)

__all__ = ["DEMO_MODELS", "LoadedModel", "built_in_models", "load_folder", "load_model"]

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
DEVICES = "auto, cpu, cuda, cuda:N or mps"
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


@dataclass
class LoadedModel:
    """A causal language model, ready to read and run.

    name: as asked for. network: in eval mode, no parameter requires a gradient. fingerprint: sha256
    of config and weight files (of what was read, whatever dtype it was read into). folder: where
    the files are. history: what happened to it, step by step; nothing for a dense one. base: the
    dense model that it was made of, and that `account` compares it with; None for a dense one.
    note: what every figure of it, and of what is made of it, is to be read with, such as that it
    was dequantised; "" where there is nothing.
    """

    name: str
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str
    folder: Path
    history: tuple[Step, ...] = ()
    base: BaseModel | None = None
    account: SizeAndCost | None = None
    note: str = ""

    def __repr__(self) -> str:
        size = f"{self.size.parameters:,} parameters"
        return f"LoadedModel({self.name!r}, {size}, {self.dtype}, on {self.device})"

    @property
    def provenance(self) -> Provenance:
        """How it came to be, as a checkpoint keeps it."""
        return Provenance(self.history, self.base, self.account)

    def step(self, kind: type[S]) -> S | None:
        """The last step of a kind, such as `Compressed`; None where there is none."""
        return last_step(self.history, kind)

    @property
    def recipe(self) -> Recipe | None:
        """What the last compression was asked to do; None where there was none."""
        compressed = self.step(Compressed)
        return None if compressed is None else compressed.recipe

    @property
    def ranks(self) -> tuple[SlotRank, ...]:
        """The ranks that the last compression put in; nothing where there was none."""
        compressed = self.step(Compressed)
        return () if compressed is None else compressed.ranks

    @property
    def size(self) -> ModelSize:
        """Parameters and cached values, counted from the modules as they stand."""
        return measure(self.network)

    @property
    def offloaded(self) -> bool:
        """Whether the decoder layers are offloaded to disk."""
        return bool(stored_of(self.network))

    @property
    def dtype(self) -> str:
        return str(self.network.dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        return device_of(self.network)

    @property
    def context(self) -> int | None:
        """The longest sequence, in tokens, that the model has positions for; None where the
        config sets no limit.
        """
        named = (
            getattr(text_config(self.network), name, None)
            for name in ("max_position_embeddings", "max_seq_len")
        )
        return next((length for length in named if length is not None), None)

    def check_length(self, tokens: int) -> None:
        """Raise InputError where the model has no positions for so many tokens."""
        if self.context is not None and tokens > self.context:
            raise InputError(
                f"{tokens:,} tokens are more than the context of '{self.name}' holds "
                f"({self.context:,}). Use fewer (seq_len)."
            )

    def check_tokens(self, highest: int) -> None:
        """Raise InputError where the tokenizer's token `highest` has no row in the embedding."""
        rows = self.network.get_input_embeddings().num_embeddings
        if highest >= rows:
            raise InputError(
                f"The tokenizer gave token {highest}, but '{self.name}' knows {rows}. The "
                "tokenizer belongs to another model."
            )


def load_model(
    name: str, revision: str | None = None, dtype: str = "float32", device: str = "auto"
) -> LoadedModel:
    """A dense model by the name of a built-in one, folder, GGUF file or hub id.

    dtype: float32, bfloat16, float16, float64, or "auto" for the stored one. device: "auto" (CUDA
    where there is one) or as torch names it. Raises InputError in one line for everything that can
    be wrong with a name, a folder or its files.
    """
    return load_folder(model_folder(name, revision, dtype), name, dtype, device)


def model_folder(name: str, revision: str | None = None, dtype: str = "float32") -> Path:
    """The folder of a model; that of a GGUF file is in the cache, in a dtype of `load_model`.

    Raises InputError as `load_model` does.
    """
    try:
        place = locate(name, revision)
    except OSError as error:  # such as a name longer than those of files may be
        raise_shortage(error)
        raise
    if place.is_dir():
        return place
    resolve_dtype(dtype)
    return dequantised(place, dtype, PACKAGED[name].about if name in PACKAGED else "")


def load_folder(
    folder: Path, name: str, dtype: str = "float32", device: str = "auto", offload: bool = False
) -> LoadedModel:
    """`load_model` once the files are here.

    offload: leave the decoder layers on disk, to be read one at a time.
    """
    target = resolve_device(device)
    config = read_config(folder)
    files = weight_files(folder)
    check_claims(folder, config.get_text_config(), files)
    check_ties(folder, config.get_text_config(), files)
    tokenizer = read_tokenizer(folder)
    if offload:
        network = _offloaded_network(folder, config, files, resolve_dtype(dtype), target)
    else:
        raise_unless_free(
            bytes_converted(files, resolve_dtype(dtype)),
            f"The weights in '{folder}', read as {dtype},",
            "Choose the dtype of the files, or offload the model.",
            free_memory(),
        )
        network = _read_network(folder, config, resolve_dtype(dtype))
        check_finite(network.state_dict().items(), folder, network.dtype)
        move_to(network, target)
    known, note = fingerprint(folder, files), note_of(folder)
    return LoadedModel(name, network, tokenizer, known, folder, note=note)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a model folder. Raises InputError where there is none."""
    check_vocabulary(folder)
    # transformers picks the class by the model_type too, and knows none of ours
    known = {"config": read_config(folder)} if has_own_type(folder) else {}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **known
            )
        check_growth(tokenizer, folder)
        return tokenizer
    except InputError:
        raise
    except Exception as error:  # from a missing file to a parse error in Rust
        raise_shortage(error)
        tokenizer_files = sorted(path.name for path in folder.glob("*token*"))
        state = (
            f"its tokenizer files ({', '.join(tokenizer_files)}) cannot be read"
            if tokenizer_files
            else "it has no tokenizer files"
        )
        raise InputError(
            f"'{folder}': {state}. Copy tokenizer.json and tokenizer_config.json of the same "
            "model into it."
        ) from error


def _read_network(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype | str
) -> PreTrainedModel:
    options: dict[str, Any] = {
        "dtype": dtype,
        "use_safetensors": True,
        "local_files_only": True,
        "trust_remote_code": False,
    }
    options |= {"attn_implementation": kernel_of(config)} | experts_of(config, dtype)
    try:
        with quiet():
            network, info = auto_class(config).from_pretrained(
                folder,
                config=dequantising(config),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **options,
            )
    except Exception as error:  # the last net under a library with many kinds of failure
        raise_shortage(error)
        raise InputError(
            f"The model in '{folder}' cannot be loaded ({one_line(error)}). Config and weights may "
            "belong to different models: copy the folder again."
        ) from error
    _refuse_gaps(folder, info)
    _refuse_layers(folder, len(decoder_layers(network)), info["unexpected_keys"])
    return network


def _offloaded_network(
    folder: Path,
    config: PretrainedConfig,
    files: list[Path],
    dtype: torch.dtype | str,
    device: torch.device,
) -> PreTrainedModel:
    if config.model_type in MULTIMODAL or architecture_by(config).experts:
        raise InputError(
            f"'{folder}': weights of {with_article(config.model_type)} model are joined or renamed "
            "on loading. Load it without offload."
        )
    free_at_once()
    stored = stored_in(files)
    if isinstance(dtype, str):  # "auto"
        dtype = config.dtype or next(
            place.dtype for place in stored.values() if place.dtype.is_floating_point
        )
    check_dtype(dtype, device)
    network, stored = empty_network(config, dtype), as_dtype(stored, dtype)
    _refuse_gaps(folder, map_weights(network, stored, device, cache_folder() / OFFLOADED))
    return checked(network, stored, folder)


def checked(
    network: PreTrainedModel, stored: Mapping[str, StoredTensor], folder: Path
) -> PreTrainedModel:
    """An offloaded network whose numbers have all been looked at once, one tensor at a time;
    frozen and in eval mode.
    """
    check_finite(((name, place.map()) for name, place in stored.items()), folder, network.dtype)
    return network.eval().requires_grad_(False)


def empty_network(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The modules without weights.

    Built on the CPU, not on "meta", because buffers that no file holds are computed on the way;
    memory that nobody writes to is only promised.
    """
    with unfilled():
        network = auto_class(config).from_config(
            config,
            dtype=dtype,
            attn_implementation=kernel_of(config),
            trust_remote_code=False,
            **experts_of(config, dtype),
        )
    for module in network.modules():
        if own_table(module) is not None:  # made in `dtype`; from_pretrained makes it in float32
            network._init_weights(module)
    return network


def _refuse_gaps(folder: Path, info: dict[str, Any]) -> None:
    """transformers fills what is missing or of the wrong shape with random numbers and only
    warns.
    """
    mismatched = sorted(info["mismatched_keys"])
    if mismatched:
        name, stored, expected = mismatched[0]
        raise InputError(
            f"'{folder}': the shape of '{name}' is {list(stored)} in the weights but "
            f"{list(expected)} by config.json "
            f"({len(mismatched)} such). Config and weights belong to different models."
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(
            f"'{folder}' lacks {len(missing)} of the weights that config.json calls for, first "
            f"'{missing[0]}'. "
            "Files are missing, or they belong to another model."
        )


def _refuse_layers(folder: Path, layers: int, unread: Iterable[str]) -> None:
    """transformers leaves out what the config does not call for: an entire layer as well."""
    numbered = {name: at for name in unread if (at := _LAYER.search(name))}
    beyond = sorted(name for name, at in numbered.items() if int(at[1]) >= layers)
    if beyond:
        raise InputError(
            f"'{folder}' holds '{beyond[0]}', but config.json calls for {layers} layers. Config "
            "and weights belong to different models."
        )


def move_to(network: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """Move to the device, switch to eval mode and freeze. Raises InputError where the device does
    not take the model.
    """
    check_dtype(network.dtype, device)
    try:
        network.to(device)
    except (RuntimeError, AssertionError, ImportError) as error:  # Import: of other makers' devices
        raise_shortage(error)
        raise InputError(
            f"The model cannot be moved to '{device}' ({one_line(error)}). Use device cpu or a "
            "smaller dtype."
        ) from error
    return network.eval().requires_grad_(False)


def check_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Raise InputError where a device has no numbers of a model's dtype."""
    if dtype == torch.float64 and exact_device(device) != device:
        raise InputError(
            f"Device '{device}' has no float64, which is the model's dtype. Use dtype float32, or "
            "device cpu."
        )


def resolve_device(device: str) -> torch.device:
    """'auto' -> CUDA where there is one, else CPU. Raises InputError for a device that this
    machine lacks.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"Unknown device {quoted(device)}. Use {DEVICES}.") from error
    if chosen.type == "meta":
        raise InputError(f"Device 'meta' holds no numbers. Use {DEVICES}.")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(
            "Device 'mps' was asked for, but PyTorch finds no GPU of Apple's here. Use auto or cpu."
        )
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"Device '{device}' was asked for, but {torch.cuda.device_count()} CUDA devices are "
            "visible. Use auto or cpu."
        )
    return chosen


def resolve_dtype(dtype: str) -> torch.dtype | str:
    """The torch dtype, or "auto" unchanged. Raises InputError for another name."""
    if dtype != "auto" and dtype not in DTYPES:
        raise unknown("dtype", dtype, [*DTYPES, "auto"])
    chosen: torch.dtype | str = DTYPES.get(dtype, dtype)
    return chosen
