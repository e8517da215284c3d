"""Where a daemon is by default, and which hosts are this very machine."""

from __future__ import annotations

import ipaddress
from typing import Final

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8265
DEFAULT_URL: Final = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"


def is_loopback(host: str) -> bool:
    """Whether a name or address, without brackets, can only mean this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # RFC 6761 gives these names to the loopback.
        return host.lower().removesuffix(".").split(".")[-1] == "localhost"


def host_of(authority: str) -> str:
    """The host of `host:port`, without brackets and port.

    >>> host_of("[::1]:80")
    '::1'
    """
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def base_url(host: str, port: int) -> str:
    """The URL of a daemon that listens there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
