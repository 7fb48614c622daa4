"""From a model's name to a folder on this machine: demo model, local folder, or hub id."""

import contextlib
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from ..errors import InputError

DEMO_MODELS = ("demo-llama", "demo-opt")
_PACKAGE = Path(__file__).resolve().parents[1]
# Inside the package where it is installed (see setup.py), beside it in a clone.
ASSETS = _PACKAGE / "assets"
if not ASSETS.is_dir():
    ASSETS = _PACKAGE.parent / "assets"

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
# Text files and safetensors at the top of the repository: no code, no copy in another format.
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.csv", "README.md"]
_UNWANTED = ["*/*", "consolidated*", "adapter*"]
_KNOWN = (
    f"Known demo models: {', '.join(DEMO_MODELS)}; otherwise give a folder or a hub id such as "
    "'org/model'."
)
_OTHERWISE = (
    "A local folder with config.json, *.safetensors and tokenizer files works without any hub."
)


def locate(name: str, revision: str | None = None) -> Path:
    """The folder with a model's files; a hub repository is downloaded to the hub cache.

    Raises InputError where the name is no demo model, existing folder or readable hub repository.
    """
    if name in DEMO_MODELS:
        return _demo(name)
    if not name.strip():
        raise InputError(f"The model's name is empty. {_KNOWN}")
    path = Path(name).expanduser()
    if path.is_dir():
        if revision is not None:
            raise InputError(
                f"'{name}' is a local folder, where a revision ('{revision}') has no meaning. "
                "Leave the revision out."
            )
        return path.resolve()
    if path.is_file():
        raise InputError(
            f"'{name}' is a file. Give the folder that holds config.json, *.safetensors and the "
            "tokenizer files."
        )
    _refuse_what_no_hub_has(name)
    return _download(name, revision)


def _demo(name: str) -> Path:
    folder = ASSETS / name
    if not folder.is_dir():
        raise InputError(
            f"The files of the demo model '{name}' are not in '{folder}'. Install the "
            "project again, or run it from a complete clone."
        )
    return folder


def _refuse_what_no_hub_has(name: str) -> None:
    if (
        name.startswith(("/", ".", "~"))
        or "\\" in name
        or name.count("/") > 1
        or name.endswith("/")
    ):
        raise InputError(f"No folder '{name}'. Check the path. {_KNOWN}")
    near = get_close_matches(name.lower(), DEMO_MODELS, n=1, cutoff=0.6) if "/" not in name else []
    if near:
        raise InputError(f"Unknown model '{name}'. Did you mean '{near[0]}'? {_KNOWN}")
    if not _HUB_ID.fullmatch(name):
        raise InputError(
            f"Unknown model '{name}': neither a folder nor a possible hub id. {_KNOWN}"
        )


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import errors, snapshot_download

    at = f"'{name}'" + (f" at revision '{revision}'" if revision else "")
    try:
        with _quiet():
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
    except errors.HFValidationError as error:
        raise InputError(
            f"Unknown model '{name}': neither a folder nor a possible hub id. {_OTHERWISE}"
        ) from error
    except Exception as error:  # the network library's errors, whose names change with versions
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
            f"Check the network, or set HF_ENDPOINT to a mirror. {_OTHERWISE} Demo models: "
            f"{', '.join(DEMO_MODELS)}."
        )
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return (
        f"The download of {at} did not finish ({type(error).__name__}: {reason}). Try again: "
        f"complete files are kept. {_OTHERWISE}"
    )
