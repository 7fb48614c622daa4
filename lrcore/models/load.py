"""Loading of models from safetensors, without remote code.

All problems of a model's files are reported in an error message of a single line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from ..layers.account import SizeAndCost
from ..layers.linalg import float64_device
from ..layers.modules.rotary import stored_table
from ..recipes.history import Compressed, S, SlotRank, Step, last_step
from ..recipes.provenance import BaseModel, Provenance
from ..recipes.recipe import Recipe
from ..system.errors import InputError, quoted, unknown, with_article
from ..system.files import OFFLOADED, cache_folder
from ..system.memory import free_memory, raise_unless_free
from ..system.resource_errors import raise_shortage
from ..system.tensor_files import StoredTensor, as_dtype, stored_in
from .architectures import MULTIMODAL, attention_kernel, config_architecture, text_config
from .config import (
    auto_class,
    error_line,
    experts_options,
    extra_layers,
    has_compressed_type,
    language_model_alone,
    quiet,
    read_config,
    without_initialization,
)
from .gguf_import import dequantized, made_once, model_note
from .hub import DEMO_MODELS, PACKAGED, built_in_models, locate
from .layers import device_of
from .lora_import import adapter_base, is_adapter, merged_folder, write_merged
from .model_size import ModelSize, measure
from .offload import map_weights, return_freed_memory, stored_tensors_of
from .quantized import Dequantized, dequantized_tensors
from .tokenizer_checks import check_growth, check_vocabulary
from .unread import cause_of, ignored_names, unread_note, zero_biases
from .weights import (
    check_finite,
    check_sizes,
    check_ties,
    converted_bytes,
    fingerprint,
    read_json,
    weight_files,
)

__all__ = ["DEMO_MODELS", "LoadedModel", "built_in_models", "load_folder", "load_model"]

MISSING = "Files are missing, or they belong to another model"
ALONE = "The files hold the language model of {} alone, without the parts that read images"
GENERATION = "generation_config.json"
DEVICES = "auto, cpu, cuda, cuda:N or mps"
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


@dataclass
class LoadedModel:
    """A causal language model in memory.

    name: as passed to `load`. network: in eval mode, without gradients. fingerprint: sha256 of
    the config and weight files, which does not depend on the dtype. folder: the model's files.
    history: the steps of its compression; empty for a dense model. base: the dense model that
    `account` compares it with; None for a dense model. note: remark that accompanies all results of
    the model and of models derived from it, such as a dequantization, or tensors of its files that
    were left out; "" for no remark.
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
        """History, base model and account, as a checkpoint stores them."""
        return Provenance(self.history, self.base, self.account)

    def step(self, kind: type[S]) -> S | None:
        """Return the last step of a type, such as `Compressed`, or None."""
        return last_step(self.history, kind)

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the last compression, or None."""
        compressed = self.step(Compressed)
        return None if compressed is None else compressed.recipe

    @property
    def ranks(self) -> tuple[SlotRank, ...]:
        """The ranks of the last compression; empty for a dense model."""
        compressed = self.step(Compressed)
        return () if compressed is None else compressed.ranks

    @property
    def size(self) -> ModelSize:
        """Parameters and cached values, counted from the current modules."""
        return measure(self.network)

    @property
    def offloaded(self) -> bool:
        """True if the decoder layers are offloaded to disk."""
        return bool(stored_tensors_of(self.network))

    @property
    def dtype(self) -> str:
        return str(self.network.dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        return device_of(self.network)

    @property
    def context(self) -> int | None:
        """The longest sequence in tokens, or None if the config sets no limit."""
        named = (
            getattr(text_config(self.network), name, None)
            for name in ("max_position_embeddings", "max_seq_len")
        )
        return next((length for length in named if length is not None), None)

    def check_length(self, tokens: int) -> None:
        """Raise InputError if a sequence of this length exceeds the context."""
        if self.context is not None and tokens > self.context:
            raise InputError(
                f"{tokens:,} tokens exceed the context of '{self.name}' ({self.context:,}). Use "
                "shorter windows."
            )

    def check_tokens(self, highest: int) -> None:
        """Raise InputError if the token id `highest` has no row in the embedding."""
        rows = self.network.get_input_embeddings().num_embeddings
        if highest >= rows:
            raise InputError(
                f"The tokenizer returned token id {highest}, but '{self.name}' has {rows} tokens. "
                "The tokenizer belongs to another model."
            )


def load_model(
    name: str, revision: str | None = None, dtype: str = "float32", device: str = "auto"
) -> LoadedModel:
    """Load a dense model: a built-in model, a folder, a GGUF file or a hub id.

    dtype: float32, bfloat16, float16, float64, or "auto" for the stored dtype. device: a torch
    device, or "auto" for CUDA if available. Raises InputError for any problem with the name, the
    folder or its files.
    """
    return load_folder(model_folder(name, revision, dtype), name, dtype, device)


def model_folder(name: str, revision: str | None = None, dtype: str = "float32") -> Path:
    """Return the folder of a model.

    A GGUF file, or a LoRA adapter with its base model, is converted to a folder in the cache.
    dtype: of the converted weights, as in `load_model`. Raises InputError as `load_model` does.
    """
    return _model_folder(name, revision, dtype, ())


def _model_folder(name: str, revision: str | None, dtype: str, adapters: tuple[Path, ...]) -> Path:
    """Return the folder of a model. adapters: the adapters that it is the base of."""
    try:
        path = locate(name, revision)
    except OSError as error:  # for example, the name is too long for a file name
        raise_shortage(error)
        raise
    if path.is_dir() and not is_adapter(path):
        return path
    stored = resolve_dtype(dtype)
    if path.is_dir():
        return _merged(path, dtype, stored, adapters)
    return dequantized(path, dtype, PACKAGED[name].about if name in PACKAGED else "")


def _merged(
    folder: Path, dtype: str, stored: torch.dtype | str, adapters: tuple[Path, ...]
) -> Path:
    """Return the folder of a LoRA adapter merged into its base, in float32 or float64.

    stored: dtype of the result, or "auto" for the dtype of the base. adapters: see `_model_folder`.
    """
    name, revision = adapter_base(folder)
    if folder.resolve() in adapters:
        raise InputError(
            f"'{folder}' is a LoRA adapter that is its own base. Correct base_model_name_or_path "
            "in adapter_config.json."
        )
    try:
        base = _model_folder(name, revision, dtype, (*adapters, folder.resolve()))
        digest = fingerprint(base, weight_files(base))
    except InputError as error:
        raise InputError(
            f"'{folder}' is a LoRA adapter, and its base model '{name}' cannot be read: {error}"
        ) from error

    def write(draft: Path) -> None:
        model = load_folder(base, name, "float64" if dtype == "float64" else "float32", "cpu")
        of_base = read_config(base).dtype or model.network.dtype
        has_tokenizer = (folder / "tokenizer_config.json").is_file()
        tokenizer = read_tokenizer(folder) if has_tokenizer else model.tokenizer
        result = of_base if isinstance(stored, str) else stored
        write_merged(folder, model.network, tokenizer, result, draft)

    return made_once(merged_folder(folder, digest, dtype), write)


def load_folder(
    folder: Path, name: str, dtype: str = "float32", device: str = "auto", offload: bool = False
) -> LoadedModel:
    """Load a dense model from a local folder, as `load_model` does.

    offload: leave the decoder layers on disk and read each when it is used.
    """
    target = resolve_device(device)
    config = read_config(folder)
    files = weight_files(folder)
    stored, quantization = dequantized_tensors(folder, stored_in(files))
    family = config.model_type
    config, stored = language_model_alone(config, stored)
    is_alone = config.model_type != family
    check_sizes(folder, config.get_text_config(), stored)
    check_ties(folder, config, stored)
    tokenizer = read_tokenizer(folder)
    if offload:
        network, unread = _offloaded_network(folder, config, stored, resolve_dtype(dtype), target)
    else:
        raise_unless_free(
            converted_bytes(stored, resolve_dtype(dtype)),
            f"The weights in '{folder}', read as {dtype},",
            "Choose the dtype of the files, or offload the model.",
            free_memory(),
        )
        network, unread = _read_network(folder, config, stored, resolve_dtype(dtype), is_alone)
        check_finite(network.state_dict().items(), folder, network.dtype)
        move_to(network, target)
    unread |= ignored_names(network, stored)
    unread -= zero_biases(unread, stored)
    left_out = unread_note(network, unread, folder, extra_layers(folder))
    alone = ALONE.format(with_article(family)) if is_alone else ""
    note = ". ".join(filter(None, (model_note(folder), quantization, alone, left_out)))
    return LoadedModel(name, network, tokenizer, fingerprint(folder, files), folder, note=note)


def folder_has_template(folder: Path) -> bool:
    """Return whether the tokenizer files of a model folder have a chat template."""
    config = folder / "tokenizer_config.json"
    return (folder / "chat_template.jinja").is_file() or (
        config.is_file() and bool(read_json(config).get("chat_template"))
    )


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a model folder. Raises InputError if it is missing or damaged."""
    check_vocabulary(folder)
    # transformers selects the class by model_type, too, and does not know "lowrank_...".
    options = {"config": read_config(folder)} if has_compressed_type(folder) else {}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **options
            )
        check_growth(tokenizer, folder)
        return tokenizer
    except InputError:
        raise
    except Exception as error:  # many types, from a missing file to a parse error in Rust
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


class _Lazy:
    """A stored tensor that transformers reads when it needs the tensor."""

    def __init__(self, stored: StoredTensor) -> None:
        self._stored = stored

    def __getitem__(self, _all: Any) -> Tensor:
        """Return the tensor [...] in its dtype."""
        return self._stored.map()


def _stored_dtype(config: PretrainedConfig, stored: Mapping[str, StoredTensor]) -> torch.dtype:
    """Return the dtype of a model for "auto"."""
    floating = (tensor.dtype for tensor in stored.values() if tensor.dtype.is_floating_point)
    return config.dtype or next(floating)


def _read_network(
    folder: Path,
    config: PretrainedConfig,
    stored: Mapping[str, StoredTensor],
    dtype: torch.dtype | str,
    is_renamed: bool,
) -> tuple[PreTrainedModel, set[str]]:
    """Return the network, and the names of tensors that transformers did not read.

    is_renamed: the files have other names than `stored`.
    """
    options: dict[str, Any] = {
        "use_safetensors": True,
        "local_files_only": True,
        "trust_remote_code": False,
    }
    source: Path | None = folder
    loader = auto_class(config)
    if is_renamed or any(isinstance(tensor, Dequantized) for tensor in stored.values()):
        dtype = _stored_dtype(config, stored) if isinstance(dtype, str) else dtype
        options["state_dict"] = {name: _Lazy(tensor) for name, tensor in stored.items()}
        # The Auto class would look for an adapter in the folder, although the folder is None.
        source, loader = None, loader._model_mapping[type(config)]
    options |= {"dtype": dtype}
    options |= {"attn_implementation": attention_kernel(config)} | experts_options(config, dtype)
    try:
        with quiet():
            network, info = loader.from_pretrained(
                source,
                config=config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **options,
            )
            if source is None:
                network.config.name_or_path = str(folder)
                if (folder / GENERATION).is_file():
                    network.generation_config = GenerationConfig.from_pretrained(folder)
    except Exception as error:  # transformers raises exceptions of many types
        raise_shortage(error)
        raise InputError(
            f"The model in '{folder}' cannot be loaded ({error_line(error)}). Config and weights "
            "may belong to different models: copy the folder again."
        ) from error
    _refuse_gaps(folder, info)
    return network, set(info["unexpected_keys"])


def _offloaded_network(
    folder: Path,
    config: PretrainedConfig,
    stored: Mapping[str, StoredTensor],
    dtype: torch.dtype | str,
    device: torch.device,
) -> tuple[PreTrainedModel, set[str]]:
    """Return the network, and the names of tensors that it does not read."""
    is_multimodal = config.model_type in MULTIMODAL
    if is_multimodal or config_architecture(config).experts or _is_converted(config, stored):
        raise InputError(
            f"'{folder}': {with_article(config.model_type)} model cannot be offloaded, since "
            "loading joins or renames its weights. Load it without offload."
        )
    return_freed_memory()
    if isinstance(dtype, str):  # "auto"
        dtype = _stored_dtype(config, stored)
    check_dtype(dtype, device)
    network, stored = empty_network(config, dtype), as_dtype(stored, dtype)
    info = map_weights(network, stored, device, cache_folder() / OFFLOADED)
    _refuse_gaps(folder, info)
    return check_offloaded(network, stored, folder), set(info["unexpected_keys"])


def _is_converted(config: PretrainedConfig, names: Iterable[str]) -> bool:
    """Return True if transformers joins or renames tensors of these names when it loads them."""
    transforms = get_checkpoint_conversion_mapping(config.model_type) or []
    return any(
        transform.rename_source_key(name)[1] is not None
        for name in names
        for transform in transforms
    )


def check_offloaded(
    network: PreTrainedModel, stored: Mapping[str, StoredTensor], folder: Path
) -> PreTrainedModel:
    """Check all numbers of an offloaded network, tensor by tensor; freeze it in eval mode."""
    tensors = ((name, tensor.map()) for name, tensor in stored.items())
    check_finite(tensors, folder, network.dtype)
    return network.eval().requires_grad_(False)


def empty_network(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Build the modules of a config without weights.

    They are built on the CPU, not on the meta device, because buffers that no file contains must be
    computed. The operating system allocates no memory for parameters that are never written.
    """
    with without_initialization():
        network = auto_class(config).from_config(
            config,
            dtype=dtype,
            attn_implementation=attention_kernel(config),
            trust_remote_code=False,
            **experts_options(config, dtype),
        )
    for module in network.modules():
        # `from_config` computed the table in `dtype`; `from_pretrained` would use float32.
        if stored_table(module) is not None:
            network._init_weights(module)
    return network


def _refuse_gaps(folder: Path, info: dict[str, Any]) -> None:
    """Raise InputError for missing or mismatched weights.

    transformers would only warn and fill them with random numbers.
    """
    mismatched = sorted(info["mismatched_keys"])
    if mismatched:
        name, stored, expected = mismatched[0]
        raise InputError(
            f"'{folder}': the shape of '{name}' is {list(stored)} in the weights but "
            f"{list(expected)} by config.json "
            f"({len(mismatched)} mismatches). Config and weights belong to different models."
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(
            f"'{folder}' lacks {len(missing)} of the weights that config.json calls for, first "
            f"'{missing[0]}'. "
            f"{cause_of(info['unexpected_keys'], MISSING)}."
        )


def move_to(network: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """Move a network to a device, freeze it, and set eval mode.

    Raises InputError if the device cannot hold the model.
    """
    check_dtype(network.dtype, device)
    try:
        network.to(device)
    except (RuntimeError, AssertionError, ImportError) as error:  # Import: devices with add-ons
        raise_shortage(error)
        raise InputError(
            f"The model cannot be moved to '{device}' ({error_line(error)}). Use device cpu or a "
            "smaller dtype."
        ) from error
    return network.eval().requires_grad_(False)


def check_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Raise InputError if a device does not support the dtype of a model."""
    if dtype == torch.float64 and float64_device(device) != device:
        raise InputError(
            f"Device '{device}' does not support float64, the dtype of the model. Use dtype "
            "float32, or device cpu."
        )


def resolve_device(device: str) -> torch.device:
    """Return a torch device; "auto" is CUDA if available, otherwise the CPU.

    Raises InputError for a device that this machine does not have.
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
            "Device 'mps' was requested, but PyTorch finds no Apple GPU. Use auto or cpu."
        )
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"Device '{device}' was requested, but {torch.cuda.device_count()} CUDA devices are "
            "visible. Use auto or cpu."
        )
    return chosen


def resolve_dtype(dtype: str) -> torch.dtype | str:
    """Return the torch dtype of a name; "auto" is returned unchanged. Raises InputError."""
    if dtype != "auto" and dtype not in DTYPES:
        raise unknown("dtype", dtype, [*DTYPES, "auto"])
    chosen: torch.dtype | str = DTYPES.get(dtype, dtype)
    return chosen
