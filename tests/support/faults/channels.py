"""Channels that the broker closes with an error."""

from __future__ import annotations

from support.broker import BrokerNode


def break_channels(node: BrokerNode, connection_prefix: str) -> int:
    """Make the broker close channels with an error, as for an ack of what was never delivered.

    Returns:
        How many there were on connections whose name begins so.
    """
    # A channel may go, and its process with it, between being listed and being asked.
    broken = node.evaluate(
        "length([Channel || Connection <- rabbit_networking:connections(),"
        " [{client_properties, Properties}] <-"
        " [catch rabbit_networking:connection_info(Connection, [client_properties])],"
        ' {<<"connection_name">>, _, Name} <- Properties,'
        f' string:prefix(Name, <<"{connection_prefix}">>) =/= nomatch,'
        " Channel <- rabbit_channel:list_local(),"
        " [{connection, Connection}] =:= (catch rabbit_channel:info(Channel, [connection])),"
        " ok =:= rabbit_channel:do(Channel, {'basic.ack', 999999, false})])"
    )
    return int(broken)
