"""`spica-async health`: whether this container's process is connected to its broker.

A broker cuts off who does not answer its heartbeats, and only a program whose event loop turns
answers them. So an established connection says more than a process that exists.
"""

from __future__ import annotations

from spica_async.cli.options import Bus
from spica_async.errors import SpicaError


def health(*, bus: Bus = None) -> None:
    """Say whether this container's process is connected to its broker, by the exit code."""
    import psutil

    from spica_async.bus.address import BrokerAddress

    address = BrokerAddress.from_options(bus)
    for connection in psutil.net_connections(kind="tcp"):
        connected = connection.status == psutil.CONN_ESTABLISHED
        if connected and connection.raddr and connection.raddr.port == address.port:
            return
    raise SpicaError(f"nothing here is connected to {address}")
