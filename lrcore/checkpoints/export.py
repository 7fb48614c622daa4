"""Exports: Hugging Face folders that load where this project is not installed.

`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` reads it by the modeling file
inside, which is cut from the sources of the modules (see portable.py); a stock export (see
stock.py) needs no code at all. Both load by `lrcore.load` too.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..errors import InputError, quoted, unknown
from ..files import MARK
from ..layer import Layer
from ..models.architectures import architecture_of, decoder_layers, text_config
from ..models.config import CONFIG, auto_class, write_config
from ..models.layers import layer_shapes, projection_paths
from ..models.load import LoadedModel
from ..models.per_layer import DENSE_SIZES, UNEVEN, sizes_by_layer, values_of
from ..models.structure import sliced_modules, structure
from ..models.weights import read_json
from ..places import expanded
from ..targets import TARGETS
from .card import Usage, model_card
from .checkpoint import SHARD, write_checkpoint, write_folder, write_json
from .filling import expert_width_of, width_of
from .notes import Changes
from .paths import names_a_path, public_model
from .portable import modeling_source
from .stock import write_stock
from .whole import Stays, whole_model

KV_HEADS = "num_key_value_heads"
NOT_IN_VLLM = "vLLM cannot run this model"
MODELING = "modeling_lowrank"
CLASS, BODY, CONFIG_CLASS = "LowRankForCausalLM", "LowRankModel", "LowRankConfig"


@dataclass(frozen=True)
class Exported:
    """A written folder.

    parameters: numbers in it. kv_values: cached numbers per token. notes: what had to be done to
    the model, a clause each; none where it is as it was.
    """

    path: Path
    parameters: int
    kv_values: int
    notes: tuple[str, ...]


def export(
    model: LoadedModel,
    folder: str | Path,
    results: Sequence[Mapping[str, Any]] = (),
    stock: bool = False,
    overwrite: bool = False,
    shard: str = SHARD,
) -> Path:
    """Write `model` as a Hugging Face folder with its code and a model card, and return the folder;
    it appears whole or not at all.

    results: measurements for the card, as `Evaluation.to_dict` gives them. stock: write an
    architecture of transformers with no code of ours, as `export_for` does. shard: largest weight
    file, such as "5GB". The card's title is the model's name, or the new folder's where the model
    came from a folder. What is written names files and folders of this machine without their paths.
    Loaded with the dtype it was saved in, its logits are bit-identical, but for a model that had to
    be changed, and a sliced one as a stock one, whose norms round otherwise. Folders are refused as
    by `save`.
    """
    target = "transformers-stock" if stock else "transformers"
    return export_for(model, folder, target, results, overwrite, shard).path


def export_for(
    model: LoadedModel,
    folder: str | Path,
    target: str,
    results: Sequence[Mapping[str, Any]] = (),
    overwrite: bool = False,
    shard: str = SHARD,
) -> Exported:
    """`export` for a target that takes a folder of the model's family: "transformers",
    "transformers-stock" or "vllm"; and what had to be done, which the card says too.

    What the target has no place for is multiplied out or filled with zeros, which changes nothing
    of what the model computes. Raises InputError with the reason where a model has no such form.
    """
    if target not in FOLDERS:
        raise unknown("target of a folder", target, FOLDERS)
    from_files = expanded(model.name).exists()
    public = public_model(model)
    title = Path(folder).name if from_files else public.name
    written: list[Exported] = []

    def write(draft: Path) -> None:
        there, changes = FOLDERS[target](public, draft, shard)
        numbers, cached = changes.parameters[1], changes.cached[1]
        notes = tuple(changes.clauses())
        loader = auto_class(public.network.config).__name__
        usage = Usage(TARGETS[target].stock, loader, lora_targets(there.network), notes)
        card = model_card(title, public.folder, public.provenance, numbers, results, usage)
        (draft / "README.md").write_text(card, encoding="utf-8")
        written.append(Exported(draft, numbers, cached, notes))

    path = write_folder(folder, overwrite, write)
    return replace(written[-1], path=path)


def _with_code(model: LoadedModel, folder: Path, shard: str) -> tuple[LoadedModel, Changes]:
    write_checkpoint(model, folder, shard)
    _add_code(model, folder)
    return model, Changes.none("folder", model.size.parameters, model.size.kv_values)


def _for_vllm(model: LoadedModel, folder: Path, shard: str) -> tuple[LoadedModel, Changes]:
    if sliced_modules(model.network):
        raise InputError(
            f"{NOT_IN_VLLM}: its residual stream is sliced. Export it with --stock where that is "
            "possible, and serve that folder."
        )
    there, changes = whole_model(model, Stays(matrices=True, widths=True), NOT_IN_VLLM)
    _with_code(there, folder, shard)
    return there, changes


FOLDERS: Mapping[str, Callable[[LoadedModel, Path, str], tuple[LoadedModel, Changes]]] = {
    "transformers": _with_code,
    "transformers-stock": write_stock,
    "vllm": _for_vllm,
}


def _add_code(model: LoadedModel, folder: Path) -> None:
    network = model.network
    (folder / f"{MODELING}.py").write_text(modeling_source(network), encoding="utf-8")
    loader = auto_class(network.config).__name__
    dense = sizes_by_layer(text_config(network))
    write_config(
        network,
        folder,
        own=True,
        architectures=[CLASS],
        auto_map={
            name: f"{MODELING}.{made}"
            for name, made in (("AutoConfig", CONFIG_CLASS), ("AutoModel", BODY), (loader, CLASS))
        },
        dtype=model.dtype,
        lowrank={"layers": structure(network)} | ({} if dense is None else {DENSE_SIZES: dense}),
    )
    if sizes := uneven_sizes(network):
        values = read_json(folder / CONFIG)
        text = values.get("text_config", values)
        # who reads the config alone still gets the sizes of the dense layers
        text |= {UNEVEN: sizes, "allow_global_per_layer_attribute_access": True}
        write_json(folder / CONFIG, values)


def uneven_sizes(network: PreTrainedModel) -> dict[str, dict[str, Any]]:
    """`per_layer_config` of transformers: by layer, as its config names them, the widths of the MLP
    and of routed experts, and the number and size of heads, where they differ from the config's,
    beside what the dense model has.

    Heads whose keys and values have two sizes, or are cached as latents, have no size there.
    """
    text = text_config(network)
    sizes = {str(index): own for index, own in (sizes_by_layer(text) or {}).items()}
    for index in range(len(decoder_layers(network))):
        own = _sizes_of(network, layer_shapes(network, index))
        changed = {name: size for name, (size, full) in own.items() if size and size != full}
        sizes |= {str(index): sizes.get(str(index), {}) | changed} if changed else {}
    return sizes


def _sizes_of(network: PreTrainedModel, layer: Layer) -> dict[str, tuple[int, int]]:
    """What a layer has by field of the config, and what the config says."""
    row, text, a = architecture_of(network), text_config(network), layer.attention
    even = a.qk_size == a.v_size and not a.latent and not a.summed
    # a width of None in a config is four times that of the stream
    width = getattr(text, row.width or "", None) or 4 * text.hidden_size
    routed = getattr(text, row.expert_width or "", None) or 0
    own = {row.width: (width_of(layer), width), row.expert_width: (expert_width_of(layer), routed)}
    own["head_dim"] = (a.qk_size if even else a.head_size, a.head_size)
    if a.kept_heads is not None:  # else they are as many as the family has in such a layer
        n_q = text.num_attention_heads
        n_kv = getattr(text, KV_HEADS, None) or n_q
        own |= {"num_attention_heads": (a.n_q, n_q), KV_HEADS: (a.n_kv, n_kv)}
    for name in ("head_dim", KV_HEADS):
        # transformers refuses a config whose layers have what the whole lacks, or what it reckons
        if not values_of(text, name) or isinstance(getattr(type(text), name, None), property):
            own.pop(name, None)
    return {name: sizes for name, sizes in own.items() if name is not None}


def lora_targets(network: PreTrainedModel) -> tuple[str, ...]:
    """Names of the layers' linear modules as PEFT's `target_modules`: "q_proj", or "q_proj.up" of a
    factored matrix; ("all-linear",) where a matrix is factored in some layers only, and
    nothing where all are stored in few bits. A part that matrices share is left out: an adapter
    merged into it by one of them would change the others.
    """
    row = architecture_of(network)
    names: dict[str, None] = {}
    others: set[str] = set()
    for layer in decoder_layers(network):
        paths = projection_paths(row, layer).values()
        holders = Counter(id(p) for path in paths for p in layer.get_submodule(path).children())
        for path in paths:
            module, leaf = layer.get_submodule(path), path.rpartition(".")[2]
            parts = {
                f"{leaf}.{name}": part
                for name, part in module.named_children()
                if holders[id(part)] == 1
            }
            for name, part in (parts or {leaf: module}).items():
                linear = isinstance(part, nn.Linear | Conv1D)
                names |= {name: None} if linear else {}
                others |= set() if linear else {name}
            others |= {leaf} if parts else set()
    return ("all-linear",) if others & names.keys() else tuple(names)


def run_checkpoint(name: str) -> str:
    """A model's name as it is, or the checkpoint inside where it is the folder of a run."""
    inside = expanded(name) / "checkpoint"
    return str(inside) if inside.is_dir() else name


def read_results(name: str, files: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Measurements for the card: those kept with a run, then those in files, an evaluation each.

    Raises InputError for other files.
    """
    report = expanded(name) / "report.json"
    kept = (
        read_json(report).get("evaluations", [])
        if run_checkpoint(name) != name and report.is_file()
        else []
    )
    given = [read_json(file) for file in files]
    for file, result in zip(files, given, strict=True):
        if not {"perplexity", "protocol"} <= result.keys():
            raise InputError(
                f"'{file}' holds no evaluation (no perplexity and protocol). Give what `evaluate "
                "--json` printed."
            )
    return [*kept, *given]


def check_repository(name: str) -> None:
    """Raise InputError for a text that is no name of a repository of the hub: `owner/name`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(
            f"{quoted(name)} is no name of a repository of the hub. It reads OWNER/NAME, of "
            "letters, digits, '-', '_' and '.', at most 96."
        ) from error


def push(folder: str | Path, repository: str, private: bool = True) -> str:
    """Upload an exported folder to the hub as `owner/name` and return its address.

    Called on explicit request only.

    The token is the hub client's (HF_TOKEN or a login). Raises InputError in one line where the hub
    refuses or cannot be reached, and for a folder whose files name paths of this machine.
    """
    from huggingface_hub import HfApi

    if not (Path(folder) / "config.json").is_file():
        raise InputError(f"'{folder}' is no exported model: it has no config.json. Export first.")
    _check_public(Path(folder))
    try:
        address = HfApi().create_repo(repository, private=private, exist_ok=True)
        HfApi().upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:  # the client lets errors of its network library through
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"The upload to '{repository}' failed ({reason}). Set HF_TOKEN to a token that may "
            "write there."
        ) from error
    return str(address)


def _check_public(folder: Path) -> None:
    for name in (MARK, "report.json", "recipe.json"):
        if (folder / name).is_file() and names_a_path(read_json(folder / name)):
            raise InputError(
                f"'{folder / name}' holds paths of this machine, which the upload would publish. "
                "Export the model (again) and push that folder: an export leaves them out."
            )
