"""Size of a model on the hub, before its download."""

from dataclasses import dataclass
from fnmatch import fnmatch

from .hub import EXCLUDED, HUB_FILE, INCLUDED, locate_local
from .load import DTYPES


@dataclass(frozen=True)
class HubSize:
    """Size of a model on the hub.

    download: bytes of the files. parameters: number of stored values; None if the hub does not
    list it.
    """

    download: int
    parameters: int | None

    def memory(self, dtype: str) -> int:
        """Return the bytes of the weights in memory, at least those of the files if the number of
        parameters is unknown. dtype: as in `lrcore.load`.
        """
        if self.parameters is None or dtype not in DTYPES:
            return self.download
        itemsize: int = DTYPES[dtype].itemsize
        return self.parameters * itemsize


def hub_size(name: str, revision: str | None = None) -> HubSize | None:
    """Return the size of a model on the hub, by a single request.

    None for a local model, for a model in the hub cache, and if the hub does not answer: the
    download reports the reason. Raises InputError for an invalid name.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    if locate_local(name, revision) is not None:
        return None
    in_repository = HUB_FILE.fullmatch(name)
    repository, file = in_repository.groups() if in_repository else (name, None)
    if isinstance(
        try_to_load_from_cache(repository, file or "config.json", revision=revision), str
    ):
        return None
    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    except Exception:  # the network library's errors, which change with its version
        return None
    files = {entry.rfilename: entry.size or 0 for entry in info.siblings or ()}
    if file is not None:
        return HubSize(files.get(file, 0), None)
    is_stored = info.safetensors is not None
    return HubSize(
        sum(size for path, size in files.items() if _is_downloaded(path)),
        sum(info.safetensors.parameters.values()) if is_stored else None,
    )


def _is_downloaded(path: str) -> bool:
    """Return True if `hub.locate` downloads a file of a repository."""
    is_included = any(fnmatch(path, pattern) for pattern in INCLUDED)
    return is_included and not any(fnmatch(path, pattern) for pattern in EXCLUDED)
