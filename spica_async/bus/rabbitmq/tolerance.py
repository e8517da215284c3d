"""Lets the client library live with messages whose properties it cannot read.

Anybody may publish to a queue what is not UTF-8, or a date beyond all calendars. The library fails
on such a property in the middle of its connection and closes that; the broker then hands out the
same message again, to the next connection, for ever. There is no option against it, so its reader
of properties is wrapped, once for the process.
"""

from __future__ import annotations

from functools import cache, wraps

from pamqp.commands import Basic
from pamqp.header import ContentHeader


@cache
def tolerate_unreadable_properties() -> None:
    """Have messages arrive without properties, if these cannot be read.

    Without a type they are refused like other garbage.
    """
    unmarshal = ContentHeader.unmarshal

    @wraps(unmarshal)
    def tolerant(self: ContentHeader, data: bytes) -> None:
        try:
            unmarshal(self, data)
        except Exception:  # noqa: BLE001 - whatever is wrong with them, they are somebody else's
            # The size of the body stands before the properties and has been read.
            self.properties = Basic.Properties()

    ContentHeader.unmarshal = tolerant  # type: ignore[method-assign]  # see the module's docstring
