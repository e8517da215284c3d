"""Whose turn it is to have a request under way, when several sweeps share the workers' slots."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_PRIORITY_DOUBLES_AFTER: Final = 10.0
_DIGITS: Final = 9
"""Of a part, so that 2.9999999999 turns are 3."""


def weight_of(priority: int) -> float:
    """How much more of the slots a sweep gets than one of priority 0; each 10 double it."""
    return math.pow(2.0, priority / _PRIORITY_DOUBLES_AFTER)


class FairTurns:
    """Hands out turns, at most `total` at once, so that each share gets its part by weight.

    A part is seldom a whole number of turns. Its whole turns a share has as soon as it wants them,
    however long those of others last; what is left over goes round by the turns of the past, so
    that of few turns, too, each gets its part in the long run, and nobody starves. More than its
    part, rounded up, is for who asks when nobody below that does.

    Pure but for the waiting: no clock, no I/O, one event loop.

    Args:
        total: turns at once, 1 or more.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._shares: list[Share] = []
        self._number = itertools.count()
        self._now = 0.0

    @asynccontextmanager
    async def share(self, priority: int) -> AsyncIterator[Share]:
        """A sweep's share of the turns, while the context is open."""
        share = Share(self, weight_of(priority), next(self._number))
        self._shares.append(share)
        self._changed()
        try:
            yield share
        finally:
            self._shares.remove(share)
            self._changed()

    def resize(self, total: int) -> None:
        """Hand out so many at once from now on; what is too many now stays."""
        if total != self._total:
            self._total = total
            self._changed()

    @property
    def now(self) -> float:
        """How far the turns have gone round, in turns of weight 1."""
        return self._now

    def part_of(self, share: Share) -> int:
        """How many turns a share is worth while all want some, 1 or more."""
        weights = sum(one.weight for one in self._shares)
        return max(1, math.ceil(self._total * share.weight / weights))

    def hand_out(self) -> None:
        """Give what is free to those who wait."""
        while sum(share.taken for share in self._shares) < self._total:
            waiting = [share for share in self._shares if share.waits]
            if not waiting:
                return
            wanted = sum(share.weight for share in self._shares if share.taken or share.waits)
            chosen = min(
                waiting,
                key=lambda share: (self._rank(share, wanted), share.due, share.number),
            )
            self._now = max(self._now, chosen.due)
            chosen.go()

    def _rank(self, share: Share, wanted: float) -> int:
        """How much a share is owed another turn, 0 most.

        Args:
            share: that waits for one.
            wanted: the weights of all that have turns or wait for one.
        """
        part = round(self._total * share.weight / wanted, _DIGITS)
        if share.taken < math.floor(part):
            return 0
        return 1 if share.taken < math.ceil(part) else 2

    def _changed(self) -> None:
        self.hand_out()
        for share in tuple(self._shares):
            share.on_change()


class Share:
    """One sweep's share of the turns.

    Attributes:
        weight: against those of others.
        number: its place among all that there were; the earlier one wins a tie.
        due: how far the turns have gone round when its next one is due.
        taken: turns that it has.
        on_change: called when what the share is worth may have changed.
    """

    def __init__(self, turns: FairTurns, weight: float, number: int) -> None:
        self.weight = weight
        self.number = number
        self.taken = 0
        self.due = turns.now
        self.on_change: Callable[[], None] = lambda: None
        self._turns = turns
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waits(self) -> bool:
        """Whether somebody waits for a turn."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        return bool(self._waiting)

    @property
    def slots(self) -> int:
        """How many turns it is worth while all want some."""
        return self._turns.part_of(self)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the context is open."""
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.waits:
            # Who has wanted nothing for a while has not saved up for it.
            self.due = max(self.due, self._turns.now)
        self._waiting.append(given)
        self._turns.hand_out()
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self._end()
            raise
        try:
            yield
        finally:
            self._end()

    def go(self) -> None:
        """Give a turn to the one that has waited longest."""
        self.taken += 1
        self.due += 1.0 / self.weight
        self._waiting.popleft().set_result(None)

    def _end(self) -> None:
        self.taken -= 1
        self._turns.hand_out()
