"""`spica-async health`: whether this container's process is connected to its broker.

A broker cuts off who does not answer its heartbeats, and only a program whose event loop turns
answers them. So an established connection says more than a process that exists.
"""

from __future__ import annotations

import psutil

from spica_async.bus.address import BrokerAddress
from spica_async.errors import SpicaError


def health_command(address: BrokerAddress) -> None:
    """Return if anything on this network stack is connected to the broker's port.

    Raises:
        SpicaError: nothing is.
    """
    for connection in psutil.net_connections(kind="tcp"):
        connected = connection.status == psutil.CONN_ESTABLISHED
        if connected and connection.raddr and connection.raddr.port == address.port:
            return
    raise SpicaError(f"nothing here is connected to {address}")
