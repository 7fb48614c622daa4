"""Exports: Hugging Face folders that load where this project is not installed.

`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` reads it by the modeling file
inside, which is cut from the sources of the modules (see portable.py); a stock export (see
stock.py) needs no code at all. Both load by `lrcore.load` too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..errors import InputError, quoted
from ..models.architectures import architecture_of, decoder_layers, text_config
from ..models.config import CONFIG, auto_class, write_config
from ..models.layers import layer_shapes, projection_paths
from ..models.load import LoadedModel
from ..models.per_layer import DENSE_SIZES, UNEVEN, sizes_by_layer, values_of
from ..models.structure import structure
from ..models.weights import MARK, read_json
from .card import Usage, model_card
from .checkpoint import SHARD, write_checkpoint, write_folder, write_json
from .paths import names_a_path, public_model
from .portable import modeling_source
from .stock import write_stock

MODELING = "modeling_lowrank"
CLASS, BODY, CONFIG_CLASS = "LowRankForCausalLM", "LowRankModel", "LowRankConfig"


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
    architecture of transformers with no code of ours; raises InputError with the reasons where the
    model does not fit one. shard: largest weight file, such as "5GB". The card's title is the
    model's name, or the new folder's where the model came from a folder. What is written names
    files and folders of this machine without their paths.
    Loaded with the dtype it was saved in, its logits are bit-identical, but for a sliced model as a
    stock one, whose norms round otherwise. Folders are refused as by `save`.
    """

    from_files = Path(model.name).expanduser().exists()
    public = public_model(model)
    title = Path(folder).name if from_files else public.name

    def write(draft: Path) -> None:
        if stock:
            write_stock(public, draft, shard)
        else:
            write_checkpoint(public, draft, shard)
            _add_code(public, draft)
        loader = auto_class(public.network.config).__name__
        usage = Usage(stock, loader, lora_targets(public.network))
        card = model_card(
            title, public.folder, public.provenance, public.size.parameters, results, usage
        )
        (draft / "README.md").write_text(card, encoding="utf-8")

    return write_folder(folder, overwrite, write)


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
    """`per_layer_config` of transformers: by layer, as its config names them, the width of the MLP
    and the size of the heads where they differ from the config's, beside what the dense model has.

    Heads whose keys and values have two sizes, or are cached as latents, have no size there.
    """
    row, text = architecture_of(network), text_config(network)
    names = (row.width, "head_dim" if values_of(text, "head_dim") else None)
    sizes = {str(index): own for index, own in (sizes_by_layer(text) or {}).items()}
    for index in range(len(decoder_layers(network))):
        layer = layer_shapes(network, index)
        a, m = layer.attention, layer.mlp
        width = None if m is None else m.up.weight.shape[0]
        even = a.qk_size == a.v_size and not a.latent and not a.summed
        head = a.qk_size if even else a.head_size
        # a width of None in a config is four times that of the stream
        whole = (getattr(text, row.width or "", None) or 4 * text.hidden_size, a.head_size)
        own = zip(names, (width, head), whole, strict=True)
        changed = {name: size for name, size, full in own if name and size and size != full}
        sizes |= {str(index): sizes.get(str(index), {}) | changed} if changed else {}
    return sizes


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
    inside = Path(name).expanduser() / "checkpoint"
    return str(inside) if inside.is_dir() else name


def read_results(name: str, files: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Measurements for the card: those kept with a run, then those in files, an evaluation each.

    Raises InputError for other files.
    """
    report = Path(name).expanduser() / "report.json"
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
