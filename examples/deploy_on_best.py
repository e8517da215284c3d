"""Deploys whatever a sweep has found to be better than all before: an example of a subscriber.

Run it as `python examples/deploy_on_best.py amqp://user:password@host/`.
"""

import asyncio
import json
import sys

import aio_pika


async def deploy(sweep: str, candidate: dict) -> None:
    """Put your own deployment here; `config` is the flat deployment that was measured."""
    print(
        f"{sweep}: deploying {candidate['candidate_id']}, score {candidate['score']:.6g}: "
        f"{json.dumps(candidate['config'])}",
        flush=True,
    )


async def main(url: str) -> None:
    """Take what is told of sweeps from a queue that outlives us, each event once."""
    connection = await aio_pika.connect_robust(url)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=1)
    exchange = await channel.declare_exchange("spica.events", "topic", durable=True)
    queue = await channel.declare_queue("deploy-on-best", durable=True)
    await queue.bind(exchange, "best.improved")
    seen: dict[str, int] = {}
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process(requeue=True):
                event = json.loads(message.body)
                # Events come at least once and in order: what is not newer has been seen.
                if event["sequence"] > seen.get(event["subject"], 0):
                    await deploy(event["subject"], event["data"]["candidate"])
                    seen[event["subject"]] = event["sequence"]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
