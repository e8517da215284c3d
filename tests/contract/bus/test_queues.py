"""What every bus does with work queues."""

from __future__ import annotations

import asyncio

import pytest

from schemas.envelope import MAX_MESSAGE_BYTES
from spica_async.bus.port import (
    AlreadySettledError,
    Bus,
    Consumer,
    DeadLetter,
    DeadLetterReason,
    Delivery,
    DeliveryLostError,
    Message,
    MessageTooLargeError,
    QueueConflictError,
    QueueNotFoundError,
    QueueSpec,
    QueueStatus,
    UnroutableError,
)

WORK = QueueSpec("work", delivery_limit=2, dead_letter_queue="dead")


@pytest.fixture
async def work(bus: Bus) -> str:
    await bus.declare_queue(QueueSpec("dead"))
    await bus.declare_queue(WORK)
    return WORK.name


def message(name: str) -> Message:
    return Message(body=name.encode(), message_id=name, type="test.v1")


async def publish(bus: Bus, queue: str, *names: str) -> None:
    for name in names:
        await bus.publish(queue, message(name))


async def take(consumer: Consumer, count: int = 1) -> list[Delivery]:
    async with asyncio.timeout(60):
        return [await anext(consumer) for _ in range(count)]


async def take_one(bus: Bus, queue: str) -> Delivery:
    """Take and ack what stands first in a queue."""
    async with bus.consume(queue, prefetch=1) as consumer:
        [delivery] = await take(consumer)
        await delivery.ack()
        return delivery


async def nothing_arrives(consumer: Consumer) -> bool:
    try:
        async with asyncio.timeout(0.05):
            await anext(consumer)
    except TimeoutError:
        return True
    return False


def names(deliveries: list[Delivery]) -> list[str]:
    return [delivery.message.message_id for delivery in deliveries]


def counts(deliveries: list[Delivery]) -> list[int]:
    return [delivery.delivery_count for delivery in deliveries]


class TestDeclaring:
    async def test_the_same_queue_may_be_declared_again(self, bus: Bus, work: str) -> None:
        await publish(bus, work, "a")
        await bus.declare_queue(WORK)
        assert names([await take_one(bus, work)]) == ["a"]

    async def test_other_arguments_are_a_conflict(self, bus: Bus, work: str) -> None:
        with pytest.raises(QueueConflictError, match="work"):
            await bus.declare_queue(QueueSpec("work", 3, "dead"))

    async def test_the_dead_letter_queue_comes_first(self, bus: Bus) -> None:
        with pytest.raises(QueueNotFoundError, match="nowhere"):
            await bus.declare_queue(QueueSpec("work", 2, "nowhere"))


class TestPublishing:
    async def test_everything_about_a_message_arrives(self, bus: Bus, work: str) -> None:
        sent = Message(b"\x00\xff", message_id="m1", type="test.v1", reply_to="answers")
        await bus.publish(work, sent)
        delivery = await take_one(bus, work)
        assert delivery.message == sent
        assert delivery.delivery_count == 0
        assert delivery.dead_letter is None

    async def test_an_unknown_queue_is_unroutable(self, bus: Bus) -> None:
        with pytest.raises(UnroutableError, match="nowhere"):
            await bus.publish("nowhere", message("a"))

    async def test_the_largest_message_passes_and_one_byte_more_does_not(
        self, bus: Bus, work: str
    ) -> None:
        largest = Message(b"x" * MAX_MESSAGE_BYTES, message_id="largest", type="test.v1")
        await bus.publish(work, largest)
        with pytest.raises(MessageTooLargeError, match="toolarge"):
            await bus.publish(work, Message(largest.body + b"x", "toolarge", "test.v1"))
        assert (await take_one(bus, work)).message == largest

    async def test_messages_wait_for_a_consumer_and_keep_their_order(
        self, bus: Bus, work: str
    ) -> None:
        await publish(bus, work, "a", "b", "c")
        async with bus.consume(work, prefetch=3) as consumer:
            assert names(await take(consumer, 3)) == ["a", "b", "c"]

    async def test_a_waiting_consumer_gets_what_is_published(self, bus: Bus, work: str) -> None:
        async with bus.consume(work, prefetch=1) as consumer, asyncio.TaskGroup() as group:
            waiting = group.create_task(take(consumer))
            await asyncio.sleep(0)
            await publish(bus, work, "a")
        assert names(waiting.result()) == ["a"]


class TestConsuming:
    async def test_an_unknown_queue_is_named(self, bus: Bus) -> None:
        with pytest.raises(QueueNotFoundError, match="nowhere"):
            async with bus.consume("nowhere", prefetch=1):
                pass

    async def test_prefetch_is_at_least_one(self, bus: Bus, work: str) -> None:
        with pytest.raises(ValueError, match="prefetch"):
            async with bus.consume(work, prefetch=0):
                pass

    async def test_prefetch_bounds_what_is_unsettled(self, bus: Bus, work: str) -> None:
        await publish(bus, work, "a", "b", "c")
        async with bus.consume(work, prefetch=2) as consumer:
            first, second = await take(consumer, 2)
            assert await nothing_arrives(consumer)
            await second.ack()
            assert names(await take(consumer)) == ["c"]
            await first.ack()

    async def test_unread_deliveries_count_against_the_prefetch(self, bus: Bus, work: str) -> None:
        async with (
            bus.consume(work, prefetch=1) as idle,
            bus.consume(work, prefetch=3) as other,
        ):
            await publish(bus, work, "a", "b", "c")
            # One of the three waits unread for `idle`, and only one.
            got = names(await take(other, 2))
            assert await nothing_arrives(other)
            assert sorted(got + names(await take(idle))) == ["a", "b", "c"]

    async def test_consumers_take_turns(self, bus: Bus, work: str) -> None:
        async with (
            bus.consume(work, prefetch=10) as one,
            bus.consume(work, prefetch=10) as two,
        ):
            await publish(bus, work, "a", "b", "c", "d")
            shares = sorted([names(await take(one, 2)), names(await take(two, 2))])
            assert shares == [["a", "c"], ["b", "d"]]

    async def test_several_tasks_may_share_a_consumer(self, bus: Bus, work: str) -> None:
        async with bus.consume(work, prefetch=3) as consumer:
            async with asyncio.TaskGroup() as group:
                waiting = [group.create_task(take(consumer)) for _ in range(3)]
                await publish(bus, work, "a", "b", "c")
            got = [name for task in waiting for name in names(task.result())]
            assert sorted(got) == ["a", "b", "c"]

    async def test_a_cancelled_wait_loses_nothing(self, bus: Bus, work: str) -> None:
        async with bus.consume(work, prefetch=1) as consumer:
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(take(consumer))
                await asyncio.sleep(0)
                await publish(bus, work, "a")
                waiting.cancel()
            if waiting.cancelled():
                assert names(await take(consumer)) == ["a"]
            else:
                assert names(waiting.result()) == ["a"]

    async def test_the_iteration_ends_with_the_context(self, bus: Bus, work: str) -> None:
        async with asyncio.TaskGroup() as group:
            async with bus.consume(work, prefetch=1) as consumer:
                waiting = [group.create_task(_read_all(consumer)) for _ in range(2)]
                await asyncio.sleep(0)
            await publish(bus, work, "a")
        assert [task.result() for task in waiting] == [[], []]
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)


async def _read_all(consumer: Consumer) -> list[Delivery]:
    return [delivery async for delivery in consumer]


class TestSettling:
    async def test_an_acked_message_never_comes_back(self, bus: Bus, work: str) -> None:
        await publish(bus, work, "a", "b")
        async with bus.consume(work, prefetch=2) as consumer:
            [a, _] = await take(consumer, 2)
            await a.ack()
        async with bus.consume(work, prefetch=2) as consumer:
            assert names(await take(consumer)) == ["b"]
            assert await nothing_arrives(consumer)

    async def test_acking_twice_frees_one_place(self, bus: Bus, work: str) -> None:
        await publish(bus, work, "a", "b", "c")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
            await a.ack()
            await a.ack()
            assert names(await take(consumer)) == ["b"]
            assert await nothing_arrives(consumer)

    async def test_nacking_twice_counts_once(self, bus: Bus, work: str) -> None:
        await publish(bus, work, "a")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
            await a.nack(requeue=True)
            await a.nack(requeue=True)
            assert counts(await take(consumer)) == [1]

    async def test_a_contradiction_is_an_error_and_changes_nothing(
        self, bus: Bus, work: str
    ) -> None:
        await publish(bus, work, "a")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
            await a.nack(requeue=True)
            with pytest.raises(AlreadySettledError):
                await a.ack()
            with pytest.raises(AlreadySettledError):
                await a.nack(requeue=False)
            [again] = await take(consumer)
            await again.ack()
            with pytest.raises(AlreadySettledError):
                await again.nack(requeue=True)

    @pytest.mark.parametrize("verb", ["ack", "requeue", "reject"])
    async def test_settling_after_the_consumer_is_closed_tells_so(
        self, bus: Bus, work: str, verb: str
    ) -> None:
        await publish(bus, work, "a")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
        with pytest.raises(DeliveryLostError, match="a"):
            await (a.ack() if verb == "ack" else a.nack(requeue=verb == "requeue"))
        again = await take_one(bus, work)
        assert (again.message.message_id, again.delivery_count) == ("a", 1)

    async def test_an_ack_before_the_close_may_be_repeated_after_it(
        self, bus: Bus, work: str
    ) -> None:
        await publish(bus, work, "a")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
            await a.ack()
        await a.ack()


class TestComingBack:
    async def test_what_comes_back_goes_before_what_was_not_delivered(
        self, bus: Bus, work: str
    ) -> None:
        await publish(bus, work, "a", "b")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
            await a.nack(requeue=True)
            again = await take(consumer)
            assert (names(again), counts(again)) == (["a"], [1])
            assert a.delivery_count == 0

    async def test_a_closed_consumer_gives_back_read_and_unread_in_order(
        self, bus: Bus, work: str
    ) -> None:
        await publish(bus, work, "a", "b", "c", "d")
        async with bus.consume(work, prefetch=3) as consumer:
            await take(consumer)
        async with bus.consume(work, prefetch=4) as consumer:
            deliveries = await take(consumer, 4)
        assert names(deliveries) == ["a", "b", "c", "d"]
        assert counts(deliveries) == [1, 1, 1, 0]

    async def test_another_consumer_takes_over_at_once(self, bus: Bus, work: str) -> None:
        async with bus.consume(work, prefetch=1) as survivor:
            async with bus.consume(work, prefetch=1) as doomed:
                await publish(bus, work, "a", "b")
                [kept] = await take(survivor)
                [lost] = await take(doomed)
            await kept.ack()
            again = await take(survivor)
        assert (names(again), counts(again)) == (names([lost]), [1])

    async def test_a_failing_consumer_gives_back_as_well(self, bus: Bus, work: str) -> None:
        await publish(bus, work, "a")

        async def crash() -> None:
            async with bus.consume(work, prefetch=1) as consumer:
                await take(consumer)
                raise RuntimeError("crash")

        with pytest.raises(RuntimeError, match="crash"):
            await crash()
        assert (await take_one(bus, work)).delivery_count == 1


class TestStopping:
    async def test_a_stopped_consumer_keeps_what_was_read_and_gives_back_the_rest(
        self, bus: Bus, work: str
    ) -> None:
        await publish(bus, work, "a", "b", "c")
        async with bus.consume(work, prefetch=2) as consumer:
            [a] = await take(consumer)
            await consumer.stop()
            async with bus.consume(work, prefetch=3) as other:
                deliveries = await take(other, 2)
                assert names(deliveries) == ["b", "c"]
                assert counts(deliveries) == [1, 0]
                await a.ack()
                assert await nothing_arrives(other)
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)
        # Both consumers are closed: what the second held is back, once.
        async with bus.consume(work, prefetch=3) as consumer:
            deliveries = await take(consumer, 2)
            assert names(deliveries) == ["b", "c"]
            assert counts(deliveries) == [2, 1]
            assert await nothing_arrives(consumer)

    async def test_stopping_ends_a_wait_and_may_be_repeated(self, bus: Bus, work: str) -> None:
        async with bus.consume(work, prefetch=1) as consumer, asyncio.TaskGroup() as group:
            waiting = group.create_task(_read_all(consumer))
            await asyncio.sleep(0)
            await consumer.stop()
            await consumer.stop()
            await publish(bus, work, "a")
        assert waiting.result() == []
        assert (await take_one(bus, work)).delivery_count == 0

    async def test_what_was_read_comes_back_when_the_context_closes(
        self, bus: Bus, work: str
    ) -> None:
        await publish(bus, work, "a")
        async with bus.consume(work, prefetch=1) as consumer:
            await take(consumer)
            await consumer.stop()
        assert (await take_one(bus, work)).delivery_count == 1


class TestDeadLetters:
    async def test_a_rejected_message_tells_where_it_died(self, bus: Bus, work: str) -> None:
        await publish(bus, work, "a")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
            await a.nack(requeue=True)
            [a] = await take(consumer)
            await a.nack(requeue=False)
            assert await nothing_arrives(consumer)
        dead = await take_one(bus, "dead")
        assert dead.message == message("a")
        assert dead.delivery_count == 0
        assert dead.dead_letter == DeadLetter(work, DeadLetterReason.REJECTED)

    async def test_one_delivery_more_than_the_limit_allows_is_the_last(
        self, bus: Bus, work: str
    ) -> None:
        await publish(bus, work, "a", "b")
        async with bus.consume(work, prefetch=1) as consumer:
            for expected in range(3):
                [a] = await take(consumer)
                assert (a.message.message_id, a.delivery_count) == ("a", expected)
                await a.nack(requeue=True)
            assert names(await take(consumer)) == ["b"]
        dead = await take_one(bus, "dead")
        assert dead.message == message("a")
        assert dead.dead_letter == DeadLetter(work, DeadLetterReason.DELIVERY_LIMIT)

    async def test_lost_consumers_reach_the_limit_too(self, bus: Bus, work: str) -> None:
        await publish(bus, work, "a")
        for _ in range(3):
            async with bus.consume(work, prefetch=1) as consumer:
                await take(consumer)
        dead = await take_one(bus, "dead")
        assert dead.dead_letter == DeadLetter(work, DeadLetterReason.DELIVERY_LIMIT)

    async def test_a_dead_letter_keeps_its_story_when_it_is_delivered_again(
        self, bus: Bus, work: str
    ) -> None:
        await publish(bus, work, "a")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
            await a.nack(requeue=False)
        async with bus.consume("dead", prefetch=1) as consumer:
            [first] = await take(consumer)
            await first.nack(requeue=True)
            [second] = await take(consumer)
        assert second.delivery_count == 1
        assert second.dead_letter == first.dead_letter

    async def test_without_a_limit_a_message_comes_back_for_ever(self, bus: Bus) -> None:
        await bus.declare_queue(QueueSpec("patient"))
        await publish(bus, "patient", "a")
        async with bus.consume("patient", prefetch=1) as consumer:
            for expected in range(50):
                [a] = await take(consumer)
                assert a.delivery_count == expected
                await a.nack(requeue=True)

    async def test_without_a_dead_letter_queue_a_rejected_message_is_dropped(
        self, bus: Bus
    ) -> None:
        await bus.declare_queue(QueueSpec("careless"))
        await publish(bus, "careless", "a", "b")
        async with bus.consume("careless", prefetch=1) as consumer:
            [a] = await take(consumer)
            await a.nack(requeue=False)
            [b] = await take(consumer)
            assert b.message.message_id == "b"
            await b.ack()
            assert await nothing_arrives(consumer)


class TestStatus:
    async def test_ready_messages_and_consumers_are_counted(self, bus: Bus, work: str) -> None:
        assert await bus.queue_status(work) == QueueStatus(ready=0, consumers=0)
        await publish(bus, work, "a", "b", "c")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
            assert await eventually(bus, work, QueueStatus(ready=2, consumers=1))
            await a.ack()
            await take(consumer)
            assert await eventually(bus, work, QueueStatus(ready=1, consumers=1))
        assert await eventually(bus, work, QueueStatus(ready=2, consumers=0))

    async def test_a_stopped_consumer_does_not_count(self, bus: Bus, work: str) -> None:
        async with bus.consume(work, prefetch=1) as consumer:
            await consumer.stop()
            assert await eventually(bus, work, QueueStatus(ready=0, consumers=0))

    async def test_an_unknown_queue_is_named(self, bus: Bus) -> None:
        with pytest.raises(QueueNotFoundError, match="nowhere"):
            await bus.queue_status("nowhere")


async def eventually(bus: Bus, queue: str, expected: QueueStatus) -> bool:
    """A broker counts a moment later."""
    async with asyncio.timeout(60):
        while await bus.queue_status(queue) != expected:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    return True


class TestDeleting:
    async def test_a_deleted_queue_is_gone_with_what_it_held(self, bus: Bus, work: str) -> None:
        await publish(bus, work, "a")
        await bus.delete_queue(work)
        with pytest.raises(UnroutableError):
            await publish(bus, work, "b")
        with pytest.raises(QueueNotFoundError):
            await bus.queue_status(work)
        await bus.declare_queue(WORK)
        assert await bus.queue_status(work) == QueueStatus(ready=0, consumers=0)

    async def test_deleting_what_is_not_there_is_no_error(self, bus: Bus) -> None:
        await bus.delete_queue("nowhere")

    async def test_a_queue_may_come_back_with_other_arguments(self, bus: Bus, work: str) -> None:
        await bus.delete_queue(work)
        await bus.declare_queue(QueueSpec(work, 5, "dead"))
        await publish(bus, work, "a")
        assert names([await take_one(bus, work)]) == ["a"]

    async def test_a_consumer_goes_on_when_its_queue_returns(self, bus: Bus, work: str) -> None:
        async with bus.consume(work, prefetch=2) as consumer:
            await publish(bus, work, "a", "b")
            [a] = await take(consumer)
            await bus.delete_queue(work)
            # A broker needs a moment to tell the consumer.
            await asyncio.sleep(0.5)
            await bus.declare_queue(WORK)
            await publish(bus, work, "c")
            # "b" went with the queue, although it had been handed out unread.
            assert names(await take(consumer)) == ["c"]
            with pytest.raises(DeliveryLostError, match="a"):
                await a.ack()

    async def test_what_dies_finds_a_dead_letter_queue_that_returned(
        self, bus: Bus, work: str
    ) -> None:
        await bus.delete_queue("dead")
        await bus.declare_queue(QueueSpec("dead"))
        await publish(bus, work, "a")
        async with bus.consume(work, prefetch=1) as consumer:
            [a] = await take(consumer)
            await a.nack(requeue=False)
        assert (await take_one(bus, "dead")).message == message("a")
