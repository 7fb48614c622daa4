"""What a folder says of the compressed model in it: lrcore.json as `save` and `export` write it, or
config.json alone, which is all that transformers keeps of an export it saves again.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..errors import InputError
from ..files import MARK
from ..models.config import CONFIG
from ..models.weights import read_json

FORMAT = 2


@dataclass(frozen=True)
class Description:
    """dtype: that of the stored numbers. structure: the replaced modules, as `install` reads them.
    tied: further names of a tensor, each with its first; None where only the modules tell.
    """

    dtype: str
    structure: dict[str, Any]
    tied: dict[str, str] | None = None

    def tied_in(self, network: PreTrainedModel, names: Collection[str]) -> dict[str, str]:
        """Names of the network's tensors that the files lack, each with the one among `names` that
        is the same tensor.
        """
        if self.tied is not None:
            return self.tied
        state = network.state_dict(keep_vars=True)
        first = {id(tensor): name for name, tensor in state.items() if name in names}
        same = {name: first[id(tensor)] for name, tensor in state.items() if id(tensor) in first}
        # the head of an empty network is not yet that of the embeddings
        for one, other in network.all_tied_weights_keys.items():
            same |= {one: other} if other in names else {other: one}
        return {name: own for name, own in same.items() if name not in names and own in names}


def is_described(folder: Path) -> bool:
    """Whether a folder says which modules the model in it has instead of its family's."""
    if (folder / MARK).is_file():
        return True
    config = folder / CONFIG
    return config.is_file() and "lowrank" in read_json(config)


def read_description(folder: Path) -> Description:
    """The description in a folder. Raises InputError where it cannot be read."""
    if (folder / MARK).is_file():
        return _read_mark(folder)
    config = read_json(folder / CONFIG)
    try:
        structure = config["lowrank"]["layers"]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"'{folder / CONFIG}' names no compressed layers under 'lowrank'. The file was changed "
            "or cut: copy the folder again."
        ) from error
    return Description(config.get("dtype") or config.get("torch_dtype") or "float32", structure)


def _read_mark(folder: Path) -> Description:
    described = read_json(folder / MARK)
    version = described.get("format")
    if version != FORMAT:
        raise InputError(
            f"'{folder}' has checkpoint format {version!r}, but this version reads {FORMAT}. Use "
            "the version that wrote it, or make the model again by its recipe: lrcore compress "
            f"--recipe '{folder / 'recipe.json'}' --out FOLDER."
        )
    lacking = [key for key in ("dtype", "structure", "tied") if key not in described]
    if lacking:
        raise InputError(
            f"'{folder / MARK}' lacks {', '.join(lacking)}. The file was changed or cut: copy the "
            "checkpoint again."
        )
    return Description(described["dtype"], described["structure"], described["tied"])
