"""Access to the page: host names, password and readable folders, from options and environment."""

import asyncio
import hmac
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import lrcore

from .host_names import ANY_NAME, HostNames

MIN_PASSWORD = 8  # characters
WRONG_PASSWORD_DELAY = 1.0  # seconds
PASSWORD_NEEDED = (
    "Other machines can reach the page at {}. Set LRCORE_PASSWORD or give --password-file FILE, or "
    "give --no-password to let everybody use this machine."
)
TUNNEL = (
    "--share was removed, because it opened a tunnel through Gradio's servers. For a public link, "
    "use a tunnel of your own: start the page with --name NAME and LRCORE_PASSWORD, and run, for "
    "example, `ssh -R 80:localhost:7860 HOST` or `cloudflared tunnel --url http://localhost:7860`."
)


@dataclass(frozen=True)
class Access:
    """Who can open the page, and which folders it can read.

    names: the host names of the page. password: "" if none is needed. roots: folders of models and
    texts; () for any folder.
    """

    names: HostNames = field(default_factory=HostNames)
    password: str = field(default="", repr=False)
    roots: tuple[Path, ...] = ()


def add_options(options: ArgumentParser) -> None:
    """Add the command-line options that `read` reads."""
    options.add_argument(
        "--host",
        default=os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1",
        help="address to listen on; 0.0.0.0 lets other machines in, with a password",
    )
    options.add_argument(
        "--name",
        action="append",
        help="another host name of the page, such as the name of a reverse proxy or tunnel "
        "(LRCORE_NAMES: several, separated by commas)",
    )
    options.add_argument(
        "--root",
        action="append",
        help="a folder in which models and texts can be read (LRCORE_ROOTS: several, separated as "
        "in PATH); if other machines reach the page, the default is the folder of runs",
    )
    options.add_argument(
        "--password-file", help="a file with the password (or set LRCORE_PASSWORD)"
    )
    options.add_argument(
        "--no-password",
        action="store_true",
        help="let in everybody who reaches the address (LRCORE_NO_PASSWORD=1)",
    )
    options.add_argument("--share", action="store_true", help="removed; use a tunnel and --name")


def read(options: Namespace, environment: Mapping[str, str], runs: Path) -> Access:
    """Return the access that the options of `add_options` and the environment describe.

    runs: the folder of runs, which is always readable. A Space needs no password, because the hub
    controls who can open it. Raises InputError if a required password is missing, if a password is
    too short or cannot be read, and for --share.
    """
    if options.share:
        raise lrcore.InputError(TUNNEL)
    in_space = bool(environment.get("SPACE_ID"))
    other_names = [*(options.name or ()), *_split(environment.get("LRCORE_NAMES", ""), ",")]
    names = HostNames(options.host, (*other_names, *((ANY_NAME,) if in_space else ())))
    password = _password(options, environment)
    is_open = options.no_password or environment.get("LRCORE_NO_PASSWORD", "") not in ("", "0")
    if not (names.is_local or password or is_open or in_space):
        addresses = " and ".join([options.host, *other_names])
        raise lrcore.InputError(PASSWORD_NEEDED.format(addresses))
    roots = [*(options.root or ()), *_split(environment.get("LRCORE_ROOTS", ""), os.pathsep)]
    if roots or not names.is_local:
        roots.append(str(runs))
    return Access(names, password, tuple(map(Path, roots)))


def login(password: str) -> Callable[[str, str], Awaitable[bool]]:
    """Return Gradio's `auth` function; every user name is accepted."""

    async def is_right(name: str, attempt: str) -> bool:
        del name
        if hmac.compare_digest(attempt.encode(), password.encode()):
            return True
        await asyncio.sleep(WRONG_PASSWORD_DELAY)
        return False

    return is_right


def _password(options: Namespace, environment: Mapping[str, str]) -> str:
    password = environment.get("LRCORE_PASSWORD", "")
    if options.password_file:
        try:
            path = Path(options.password_file).expanduser()
            password = path.read_text(encoding="utf-8").strip()
        except (OSError, RuntimeError, UnicodeDecodeError) as error:
            raise lrcore.InputError(
                f"The password cannot be read from '{options.password_file}'. Name a text file "
                "that you can read."
            ) from error
    if (password or options.password_file) and len(password) < MIN_PASSWORD:
        raise lrcore.InputError(
            f"The password has fewer than {MIN_PASSWORD} characters. Choose a longer one."
        )
    return password


def _split(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]
