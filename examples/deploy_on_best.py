"""Deploys what a sweep found to be better than all before: `deploy_on_best.py amqp://user@host/`."""

import asyncio
import json
import sys

import aio_pika


def deploy(sweep, candidate):
    """Put your deployment here; `config` is the flat deployment that was measured."""
    told = f"deploying {candidate['candidate_id']}, score {candidate['score']:.6g}"
    print(f"{sweep}: {told}: {json.dumps(candidate['config'])}", flush=True)


async def main(url):
    """Take what is told from a queue that outlives us."""
    channel = await (await aio_pika.connect_robust(url)).channel()
    exchange = await channel.declare_exchange("spica.events", "topic", durable=True)
    queue = await channel.declare_queue("deploy-on-best", durable=True)
    await queue.bind(exchange, "best.improved")
    seen = {}
    async for message in queue.iterator():
        async with message.process(requeue=True):
            event = json.loads(message.body)
            sweep, number = event["subject"], event["sequence"]
            if number > seen.get(sweep, 0):  # Events come at least once, and in order.
                deploy(sweep, event["data"]["candidate"])
                seen[sweep] = number


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
