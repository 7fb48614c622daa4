"""Export of models to Hugging Face folders that load without this package.

`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`, or the class that the model
card names, uses the modeling file in the folder, which is generated from the sources of the modules
(see portable.py). A standard export needs no custom code (see standard/export_standard.py).
`lrcore.load` reads both.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..layers.layer import Layer
from ..methods import METHODS, find_method
from ..models.architectures import MULTIMODAL, architecture_of, decoder_layers, text_config
from ..models.config import CONFIG, auto_class, write_config
from ..models.layers import layer_shapes, projection_paths
from ..models.load import LoadedModel
from ..models.per_layer import DENSE_SIZES_KEY, PER_LAYER_FIELD, layer_values, sizes_by_layer
from ..models.structure import sliced_modules, structure
from ..models.weights import read_json
from ..recipes.recipe import Recipe
from ..recipes.targets import BIASED_MLPS, FEWER_HEADS, TARGETS, Target
from ..system.errors import InputError, quoted, unknown, with_article
from ..system.files import MARK
from ..system.path_access import expanded
from .card import ExportUsage, model_card
from .changes import Changes
from .checkpoint import SHARD, write_checkpoint, write_folder, write_json
from .family_modules import Supported, to_family_modules
from .gguf.gguf_fit import GGUF_FAMILIES, file_layers
from .mla.export_mla import checked_layers
from .padding import expert_width, mlp_width
from .paths import contains_path, public_model
from .portable import modeling_source
from .standard.export_standard import write_standard
from .standard.standard_fit import structural_reasons

KV_HEADS = "num_key_value_heads"
NOT_IN_VLLM = "vLLM cannot run this model"
MODELING = "modeling_lowrank"
CLASS, BODY, CONFIG_CLASS = "LowRankForCausalLM", "LowRankModel", "LowRankConfig"


@dataclass(frozen=True)
class Exported:
    """A written folder.

    parameters: numbers in the folder. kv_values: cached numbers per token. notes: changes of the
    model by the export.
    """

    path: Path
    parameters: int
    kv_values: int
    notes: tuple[str, ...]


def export(
    model: LoadedModel,
    folder: str | Path,
    results: Sequence[Mapping[str, Any]] = (),
    standard: bool = False,
    overwrite: bool = False,
    shard: str = SHARD,
) -> Path:
    """Write a model as a Hugging Face folder with custom code and a model card; return the folder.

    The folder is never incomplete. Loaded in the dtype of the model, its logits are bit-identical,
    except if the model had to be changed, and for standard exports of sliced models, whose norms
    round differently.

    results: evaluations for the card, as from `Evaluation.to_dict`. standard: write a standard
    architecture of transformers without custom code, as `export_for` does. shard: size of the
    largest weight file, such as "5GB". The title of the card is the name of the model, or of the
    new folder if the model was loaded from files. No file contains paths of local files or folders,
    only their names. Raises InputError for the same folders as `save`.
    """
    target = "transformers-stock" if standard else "transformers"
    return export_for(model, folder, target, results, overwrite, shard).path


def export_for(
    model: LoadedModel,
    folder: str | Path,
    target: str,
    results: Sequence[Mapping[str, Any]] = (),
    overwrite: bool = False,
    shard: str = SHARD,
) -> Exported:
    """Export a model for a target with folders: "transformers", "transformers-stock" or "vllm".

    Structures that the target does not support are multiplied out or padded with zeros, which does
    not change the outputs; the card lists these changes. Raises InputError if that is impossible.
    """
    if target not in WRITERS:
        raise unknown("target with a folder", target, WRITERS)
    _check_row(model.network, target)
    from_files = expanded(model.name).exists()
    public = public_model(model)
    title = Path(folder).name if from_files else public.name
    written: list[Exported] = []

    def write(draft: Path) -> None:
        exported, changes = WRITERS[target](public, draft, shard)
        numbers, cached = changes.parameters[1], changes.cached[1]
        notes = tuple(changes.clauses())
        standard = TARGETS[target].standard
        loader, task = _loader_and_task(public.network, standard)
        lora = lora_targets(exported.network)
        usage = ExportUsage(standard, loader, task, lora, notes, public.note)
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
            f"{NOT_IN_VLLM}: its residual stream is sliced. Export it with --standard if possible, "
            "and serve that folder."
        )
    exported, changes = to_family_modules(
        model, Supported(factored=True, any_width=True), NOT_IN_VLLM
    )
    _with_code(exported, folder, shard)
    return exported, changes


WRITERS: Mapping[str, Callable[[LoadedModel, Path, str], tuple[LoadedModel, Changes]]] = {
    "transformers": _with_code,
    "transformers-stock": write_standard,
    "vllm": _for_vllm,
}


def check_target(model: LoadedModel, recipe: Recipe) -> None:
    """Raise InputError if the target of a recipe cannot run the model at any ranks of the method.

    No compression is computed.
    """
    target, network = TARGETS[recipe.target], model.network
    _check_row(network, recipe.target)
    if target.format == "gguf":
        file_layers(network)
        _check_method(target, recipe.method, text_config(network).model_type)
    elif target.format == "mla":
        checked_layers(network)
    elif target.standard and (reasons := structural_reasons(network)):
        raise InputError(
            f"Target {target.name}: {reasons[0]}. Leave out the target, and export with custom "
            "code."
        )


def _check_row(network: PreTrainedModel, target: str) -> None:
    """Raise InputError if a family has no row in the table of families, and a target needs it."""
    if architecture_of(network).is_inferred and target not in ("", "transformers"):
        raise InputError(
            f"Target {target}: {with_article(network.config.model_type)} model has no row in the "
            "table of families. Leave out the target, and export with custom code."
        )


def _check_method(target: Target, method: str, family: str) -> None:
    """Raise InputError if a GGUF file of the family does not support the method's structures."""
    row = find_method(method)
    removes_heads = FEWER_HEADS in row.default_structures()
    if GGUF_FAMILIES[family].plain or not (row.adds_biases or removes_heads):
        return
    problem = (
        f"adds biases, which {with_article(family)} does not support"
        if row.adds_biases
        else f"removes heads by layer, but all layers of {with_article(family)} have as many"
    )
    supported = target.native - {BIASED_MLPS, FEWER_HEADS}
    fit = [row.name for row in METHODS.values() if supported & row.default_structures()]
    raise InputError(
        f"Target {target.name}: method {method} {problem} in such a file. Suitable methods: "
        f"{', '.join(fit)}. Or leave out the target."
    )


def _loader_and_task(network: PreTrainedModel, standard: bool) -> tuple[str, str]:
    """Return the Auto class of transformers that loads an export, and the task of the hub.

    standard: the export has no code. transformers lists some language models, such as mistral4,
    among the models of images and text only; the code of an export has the class for causal models.
    """
    loader = auto_class(network.config).__name__
    causal = AutoModelForCausalLM.__name__
    if network.config.model_type in MULTIMODAL and loader != causal:
        return loader, "image-text-to-text"
    return (loader if standard else causal), "text-generation"


def _add_code(model: LoadedModel, folder: Path) -> None:
    network = model.network
    (folder / f"{MODELING}.py").write_text(modeling_source(network), encoding="utf-8")
    loader, _ = _loader_and_task(network, standard=False)
    dense = sizes_by_layer(text_config(network))
    write_config(
        network,
        folder,
        is_compressed=True,
        architectures=[CLASS],
        auto_map={
            auto: f"{MODELING}.{name}"
            for auto, name in (("AutoConfig", CONFIG_CLASS), ("AutoModel", BODY), (loader, CLASS))
        },
        dtype=model.dtype,
        lowrank={"layers": structure(network)}
        | ({} if dense is None else {DENSE_SIZES_KEY: dense}),
    )
    if sizes := uneven_sizes(network):
        values = read_json(folder / CONFIG)
        text = values.get("text_config", values)
        # Programs that read only the config get the sizes of the compressed layers.
        text |= {PER_LAYER_FIELD: sizes, "allow_global_per_layer_attribute_access": True}
        write_json(folder / CONFIG, values)


def uneven_sizes(network: PreTrainedModel) -> dict[str, dict[str, Any]]:
    """Return the sizes of layers that differ from the config, for its field `per_layer_config`.

    Keys are layer indices. The sizes of a layer are the widths of MLP and routed experts, the
    number and size of heads, and the sizes that the dense model already sets by layer. The size of
    heads is omitted if keys and values differ in size or latents are cached.
    """
    text = text_config(network)
    sizes = {str(index): dense for index, dense in (sizes_by_layer(text) or {}).items()}
    for index in range(len(decoder_layers(network))):
        fields = _sizes_of(network, layer_shapes(network, index))
        changed = {name: size for name, (size, full) in fields.items() if size and size != full}
        sizes |= {str(index): sizes.get(str(index), {}) | changed} if changed else {}
    return sizes


def _sizes_of(network: PreTrainedModel, layer: Layer) -> dict[str, tuple[int, int]]:
    """Return size in the layer and size in the config, by config field."""
    row, text, a = architecture_of(network), text_config(network), layer.attention
    has_single_size = a.qk_size == a.v_size and not a.latent and not a.summed
    # None stands for four times the width of the residual stream.
    width = getattr(text, row.width or "", None) or 4 * text.hidden_size
    routed = getattr(text, row.expert_width or "", None) or 0
    fields = {
        row.width: (mlp_width(layer), width),
        row.expert_width: (expert_width(layer), routed),
        "head_dim": (a.qk_size if has_single_size else a.head_size, a.head_size),
    }
    if a.kept_heads is not None:  # otherwise the number of heads is that of the family
        n_q = text.num_attention_heads
        n_kv = getattr(text, KV_HEADS, None) or n_q
        fields |= {"num_attention_heads": (a.n_q, n_q), KV_HEADS: (a.n_kv, n_kv)}
    for name in ("head_dim", KV_HEADS):
        # transformers refuses fields that the main config lacks or computes.
        if not layer_values(text, name) or isinstance(getattr(type(text), name, None), property):
            fields.pop(name, None)
    return {name: sizes for name, sizes in fields.items() if name is not None}


def lora_targets(network: PreTrainedModel) -> tuple[str, ...]:
    """Return the names of linear modules in the layers as `target_modules` of PEFT.

    A name is "q_proj", or "q_proj.up" for a factored matrix; ("all-linear",) if a matrix is
    factored in some layers only; () if all matrices are quantized. Parts that matrices share are
    omitted, since merging an adapter into them would change the other matrices.
    """
    row = architecture_of(network)
    names: dict[str, None] = {}
    excluded: set[str] = set()
    for layer in decoder_layers(network):
        paths = projection_paths(row, layer).values()
        # the number of projections that contain a part
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
                excluded |= set() if linear else {name}
            excluded |= {leaf} if parts else set()
    return ("all-linear",) if excluded & names.keys() else tuple(names)


def run_checkpoint(name: str) -> str:
    """Return the path of a run's checkpoint; other model names are returned unchanged."""
    inside = expanded(name) / "checkpoint"
    return str(inside) if inside.is_dir() else name


def read_results(name: str, files: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Return the evaluations of a run and of files, for the card.

    Raises InputError for a file without an evaluation.
    """
    report = expanded(name) / "report.json"
    stored = (
        read_json(report).get("evaluations", [])
        if run_checkpoint(name) != name and report.is_file()
        else []
    )
    added = [read_json(file) for file in files]
    for file, result in zip(files, added, strict=True):
        if not {"perplexity", "protocol"} <= result.keys():
            raise InputError(
                f"'{file}' has no evaluation (no perplexity and protocol). Give the output of "
                "`evaluate --json`."
            )
    return [*stored, *added]


def check_repository(name: str) -> None:
    """Raise InputError for an invalid repository name; the hub requires `owner/name`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(
            f"{quoted(name)} is not a valid repository name. Use OWNER/NAME with letters, digits, "
            "'-', '_' and '.', at most 96 characters."
        ) from error


def push(folder: str | Path, repository: str, private: bool = True) -> str:
    """Upload an exported folder to the hub as `owner/name` and return its address.

    The token is that of the hub client (HF_TOKEN or a login). Raises InputError if the hub refuses
    or cannot be reached, and for a folder whose files contain local paths.
    """
    from huggingface_hub import HfApi

    if not (Path(folder) / "config.json").is_file():
        raise InputError(f"'{folder}' is not an exported model: it has no config.json.")
    _check_public(Path(folder))
    try:
        address = HfApi().create_repo(repository, private=private, exist_ok=True)
        HfApi().upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:  # including errors of the client's network library
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"The upload to '{repository}' failed ({reason}). Set HF_TOKEN to a token with write "
            "access."
        ) from error
    return str(address)


def _check_public(folder: Path) -> None:
    for name in (MARK, "report.json", "recipe.json"):
        if (folder / name).is_file() and contains_path(read_json(folder / name)):
            raise InputError(
                f"'{folder / name}' contains local paths, which the upload would publish. Export "
                "the model again and push that folder: an export removes local paths."
            )
