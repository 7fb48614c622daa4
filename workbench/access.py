"""Who may reach the page, and what they may read: from the options and the environment."""

import asyncio
import hmac
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lrcore

from .gate import ANY, Names

SHORTEST = 8  # characters of a password
WAIT = 1.0  # seconds that a wrong password costs
NEEDED = (
    "Others can reach the page at {}: set LRCORE_PASSWORD or give --password-file FILE, so that "
    "they are asked for it; or say --no-password, and whoever reaches the address may use this "
    "machine."
)


@dataclass(frozen=True)
class Access:
    """names: of the page. password: what others are asked for, "" for nothing. roots: the folders
    that models and texts are read in, none for any.
    """

    names: Names = field(default_factory=Names)
    password: str = field(default="", repr=False)
    roots: tuple[Path, ...] = ()


def add_options(options: ArgumentParser) -> None:
    """The options that `read` reads."""
    options.add_argument(
        "--host",
        default=os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1",
        help="address to listen on; 0.0.0.0 lets others in, who need a password",
    )
    options.add_argument(
        "--share", action="store_true", help="also open a public tunnel through Gradio's servers"
    )
    options.add_argument(
        "--name",
        action="append",
        help="a further name of the page, such as that of a reverse proxy (LRCORE_NAMES: several, "
        "separated by commas)",
    )
    options.add_argument(
        "--root",
        action="append",
        help="a folder that models and texts may be read in (LRCORE_ROOTS: several, separated as "
        "in PATH); for others it is the runs alone unless one is named",
    )
    options.add_argument(
        "--password-file", help="a file with the password (or set LRCORE_PASSWORD)"
    )
    options.add_argument(
        "--no-password",
        action="store_true",
        help="let in whoever reaches the address (LRCORE_NO_PASSWORD=1)",
    )


def read(chosen: Namespace, environment: Mapping[str, str], runs: Path) -> Access:
    """What the options of `add_options` and the environment say. runs: the folder of the runs,
    which a page that others reach may always read.

    A Space is let be: the hub decides who reaches it, under names of its own. Raises InputError
    where a password is needed, too short or cannot be read.
    """
    space = bool(environment.get("SPACE_ID"))
    named = [*(chosen.name or ()), *_several(environment.get("LRCORE_NAMES", ""), ",")]
    names = Names(chosen.host, (*named, *((ANY,) if space else ())), chosen.share)
    password = _password(chosen, environment)
    without = chosen.no_password or environment.get("LRCORE_NO_PASSWORD", "") not in ("", "0")
    if not names.alone and not password and not without and not space:
        link = ["a public link"] if chosen.share else []
        raise lrcore.InputError(NEEDED.format(" and ".join([chosen.host, *named, *link])))
    roots = [*(chosen.root or ()), *_several(environment.get("LRCORE_ROOTS", ""), os.pathsep)]
    if roots or not names.alone:
        roots.append(str(runs))
    return Access(names, password, tuple(map(Path, roots)))


def login(password: str) -> Callable[[str, str], Awaitable[bool]]:
    """What Gradio asks about a name, which may be any, and a password."""

    async def right(name: str, given: str) -> bool:
        del name
        if hmac.compare_digest(given.encode(), password.encode()):
            return True
        await asyncio.sleep(WAIT)
        return False

    return right


def _password(chosen: Namespace, environment: Mapping[str, str]) -> str:
    password = environment.get("LRCORE_PASSWORD", "")
    if chosen.password_file:
        try:
            password = Path(chosen.password_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, RuntimeError, UnicodeDecodeError) as error:
            raise lrcore.InputError(
                f"The password cannot be read from '{chosen.password_file}': name a text file "
                "that you may read."
            ) from error
    if (password or chosen.password_file) and len(password) < SHORTEST:
        raise lrcore.InputError(
            f"The password has fewer than {SHORTEST} characters, which is soon guessed: choose a "
            "longer one."
        )
    return password


def _several(text: str, between: str) -> Sequence[str]:
    return [part.strip() for part in text.split(between) if part.strip()]
