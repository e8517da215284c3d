"""The steps of a sweep at which its process can be made to die."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

from spica_async.bus.memory import MemoryBus
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.evaluate import in_flight, messages
from spica_async.journal.sql import SqlJournal
from spica_async.optimizer.random_sampler import RandomSampler
from spica_async.report.folder_writer import FolderWriter

JOURNAL: Final = ("create", "take", "append", "give_back")
BUS: Final = ("publish", "broadcast", "delete_queue")
SAMPLER: Final = ("ask", "place", "observe", "restore")
FOLDER: Final = ("evaluated", "resumed", "ended")


def numbers_of(steps: Sequence[str], *, without: Collection[str] = ()) -> list[int]:
    """The numbers, from 1, of all steps but those around some methods."""
    return [number for number, step in enumerate(steps, start=1) if step.split()[-1] not in without]


@dataclass
class Steps:
    """Counts what happens, and dies by SIGKILL at one of them; at none if that is 0."""

    die_at: int = 0
    taken: list[str] = field(default_factory=list)

    def take(self, name: str) -> None:
        self.taken.append(name)
        if len(self.taken) == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, kind: type, method: str) -> None:
        """Take a step before and after each call of a method."""
        plain = getattr(kind, method)

        @wraps(plain)
        async def stepping(*args: Any, **kwargs: Any) -> Any:
            self.take(f"before {method}")
            result = await plain(*args, **kwargs)
            self.take(f"after {method}")
            return result

        setattr(kind, method, stepping)

    def before(self, kind: type, method: str) -> None:
        """Take a step before each call of a method that does not wait."""
        plain = getattr(kind, method)

        @wraps(plain)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            self.take(f"before {method}")
            return plain(*args, **kwargs)

        setattr(kind, method, stepping)

    def watch_everything(self) -> None:
        """Take steps at all that a sweep does outside of its own memory, for good."""
        for method in JOURNAL:
            self.around(SqlJournal, method)
        for bus in (MemoryBus, RabbitBus):
            for method in BUS:
                self.around(bus, method)
        for method in SAMPLER:
            self.around(RandomSampler, method)
        for method in FOLDER:
            self.before(FolderWriter, method)
        acknowledge: Callable[[Any], Awaitable[None]] = messages.acknowledge

        async def acknowledging(delivery: Any) -> None:
            self.take("before acknowledge")
            await acknowledge(delivery)
            self.take("after acknowledge")

        in_flight.acknowledge = acknowledging  # type: ignore[attr-defined]  # imported there
