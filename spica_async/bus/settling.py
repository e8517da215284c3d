"""The rules by which a delivery is settled, the same for every bus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto

from spica_async.bus.port import AlreadySettledError, DeliveryLostError, Message


class Settlement(Enum):
    """What became of a delivery."""

    ACKED = auto()
    RETURNED = auto()
    REJECTED = auto()


class SettledOnce(ABC):
    """The part of `spica_async.bus.port.Delivery` that settles it once.

    Args:
        message: what was delivered.
        queue: the name of the queue that it came from.
    """

    def __init__(self, message: Message, queue: str) -> None:
        self.message = message
        self._queue = queue
        self._settlement: Settlement | None = None

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether its consumer or its queue is gone, so that it is delivered again."""

    @abstractmethod
    async def _carry_out(self, settlement: Settlement) -> None:
        """Settle it with the bus.

        Raises:
            DeliveryLostError: it was lost meanwhile.
        """

    async def ack(self) -> None:
        """See `Delivery.ack`."""
        await self._settle(Settlement.ACKED)

    async def nack(self, *, requeue: bool) -> None:
        """See `Delivery.nack`."""
        await self._settle(Settlement.RETURNED if requeue else Settlement.REJECTED)

    async def _settle(self, settlement: Settlement) -> None:
        if self._settlement is settlement:
            return
        what = f"message {self.message.message_id} of {self._queue}"
        if self._settlement is not None:
            raise AlreadySettledError(f"{what}: {self._settlement.name.lower()} before")
        if self.is_lost:
            raise DeliveryLostError(f"{what}: its consumer or its queue was lost")
        await self._carry_out(settlement)
        self._settlement = settlement
