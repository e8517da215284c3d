"""What a worker remembers of evaluations, so that it does none twice."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.messages import EvaluationRequest
from spica_async.bus.port import Message
from workers.port import ChildDeaths

EvaluationKey = tuple[str, str]
"""Sweep and evaluation: the id of an evaluation is one within its sweep."""

_ANSWERS = 256
_ANSWER_BYTES = 32 * 2**20
_DEATHS = 1024


def key_of(request: EvaluationRequest) -> EvaluationKey:
    """What distinguishes an evaluation from all others."""
    return request.sweep_id, request.evaluation_id


class Ledger:
    """Answers that were given lately, evaluations that run, and children that died over some.

    All of it is bounded: the oldest is forgotten, and then done again if somebody asks.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[EvaluationKey, Message] = OrderedDict()
        self._answer_bytes = 0
        self._deaths: OrderedDict[EvaluationKey, ChildDeaths] = OrderedDict()
        self._claims: dict[EvaluationKey, asyncio.Event] = {}

    @asynccontextmanager
    async def claim(self, key: EvaluationKey) -> AsyncIterator[None]:
        """Be the only one to work on an evaluation; waits while another is."""
        while (released := self._claims.get(key)) is not None:
            await released.wait()
        released = self._claims[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._claims[key]
            released.set()

    def answer(self, key: EvaluationKey) -> Message | None:
        """The result that was sent, or was to be sent, if it is still known."""
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

    def keep_answer(self, key: EvaluationKey, answer: Message) -> None:
        """Remember a result, for a request that comes again."""
        assert key not in self._answers  # noqa: S101 - who has the claim has looked
        self._answers[key] = answer
        self._answer_bytes += len(answer.body)
        while len(self._answers) > _ANSWERS or self._answer_bytes > _ANSWER_BYTES:
            _, oldest = self._answers.popitem(last=False)
            self._answer_bytes -= len(oldest.body)

    def deaths(self, key: EvaluationKey) -> ChildDeaths:
        """The deaths over an evaluation, to be counted on."""
        deaths = self._deaths.setdefault(key, ChildDeaths())
        self._deaths.move_to_end(key)
        if len(self._deaths) > _DEATHS:
            self._deaths.popitem(last=False)
        return deaths
