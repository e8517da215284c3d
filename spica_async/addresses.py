"""Where our HTTP servers listen, and which hosts are this very machine."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

from spica_async.errors import InputError, file_problem

_BACKLOG: Final = 128
_LAST_PORT: Final = 65535


def is_loopback(host: str) -> bool:
    """Whether a name or address, without brackets, can only mean this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # RFC 6761 gives these names to the loopback.
        return host.lower().removesuffix(".").split(".")[-1] == "localhost"


def base_url(host: str, port: int) -> str:
    """The URL of a server that listens there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def listen(host: str, port: int, *, prefix: str = "") -> socket.socket:
    """A listener at the first address of a host.

    Args:
        host: name or address.
        port: 0 takes any that is free.
        prefix: how the names of the options for host and port begin, e.g. `trace-`.

    Raises:
        InputError: naming the option: the address cannot be listened at.
    """
    if not 0 <= port <= _LAST_PORT:
        # The resolver would take another one.
        raise InputError(f"--{prefix}port {port}: a port is at most {_LAST_PORT}")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise InputError(f"--{prefix}host: {host}: {file_problem(error)}") from error
    family, _, _, _, address = found[0]
    try:
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        where = f"--{prefix}host {host}, --{prefix}port {port}"
        raise InputError(f"{where}: cannot listen there: {file_problem(error)}") from error
    # Connections inherit it. By itself asyncio sets it on those sockets alone whose protocol was
    # named when they were made; without it an answer in two parts waits 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
