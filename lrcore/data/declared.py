"""What the card of a data set says of its files: none of another host, and none outside it.

`datasets` follows the paths and addresses of a card wherever they lead: a card could make a server
read its own files, or ask hosts that only the server reaches.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from lrcore.errors import InputError

_CARDS = ("README.md", ".huggingface.yaml")
_FILES = ("data_files", "data_dir")


def check_folder(name: str, folder: Path) -> None:
    """Raise InputError where a card in a folder names files outside it, or cannot be read."""
    import yaml
    from huggingface_hub import metadata_load

    for card in (folder / file for file in _CARDS):
        if not card.is_file():
            continue
        try:
            text = card.read_text(encoding="utf-8") if card.suffix == ".yaml" else ""
            check_card(name, yaml.safe_load(text) if text else metadata_load(card))
        except (yaml.YAMLError, ValueError, OSError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"The card '{card.name}' of the data set '{name}' cannot be read. Repair it, or "
                "name one file of the folder."
            ) from error


def check_card(name: str, card: Any) -> None:
    """Raise InputError where the metadata of a card name files outside the data set."""
    configs = card.get("configs") if isinstance(card, Mapping) else None
    for config in configs if isinstance(configs, list) else ():
        named = [config.get(field) for field in _FILES] if isinstance(config, Mapping) else []
        for path in _strings(named):
            if "://" in path or path.startswith(("/", "~", "\\")) or _climbs(path):
                raise InputError(
                    f"The card of the data set '{name}' names '{path[:80]}', which is outside it. "
                    "Such a data set is not read; choose another one."
                )


def _climbs(path: str) -> bool:
    return ".." in PurePosixPath(path.replace("\\", "/")).parts


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
