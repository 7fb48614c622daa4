"""Host names of the page, checked against Host and Origin headers.

A page of another site can send requests to a server on this machine in the name of its reader, and
can let its own name resolve to this machine (DNS rebinding). The browser sets the Host and Origin
headers itself, so these headers show both.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

ANY_NAME = "*"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(?::\d+)?")
_DEFAULT_PORT = re.compile(r":(80|443)$")


@dataclass(frozen=True)
class HostNames:
    """The host names of the page.

    host: the address that the server listens on. more: further names, such as the name of a reverse
    proxy; `ANY_NAME` accepts every name.
    """

    host: str = "127.0.0.1"
    more: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches the page."""
        return _is_loopback(self.host) and not self.more

    def accepts(self, header: str) -> bool:
        """Return True if a Host header names this page.

        If other machines reach the page, every numeric address is accepted: DNS rebinding needs a
        name.
        """
        match = _HOST.fullmatch(header.strip().lower())
        name = match[1].strip("[]").rstrip(".") if match else ""
        if name and ANY_NAME in self.more:
            return True
        if name in {self.host.lower().strip("[]"), *map(str.lower, self.more)}:
            return True
        return _is_loopback(name) or (not self.is_local and _is_address(name))

    def is_same_origin(self, origin: str, host: str) -> bool:
        """Return True if an Origin header belongs to the page with this Host header, or to one of
        the further names.
        """
        try:
            sender = urlsplit(origin.strip().lower())
        except ValueError:  # an unclosed bracket
            return False
        if sender.scheme not in ("http", "https") or not sender.netloc:
            return False
        expected = _DEFAULT_PORT.sub("", host.strip().lower())
        return _DEFAULT_PORT.sub("", sender.netloc) == expected or (
            (sender.hostname or "") in map(str.lower, self.more)
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)
