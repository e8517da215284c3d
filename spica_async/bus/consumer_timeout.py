"""How long a broker lets a worker hold a request, from its management API."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from pydantic import SecretStr
from yarl import URL

from spica_async.bus.address import BrokerAddress
from spica_async.bus.limits import HOLD_MARGIN_SECONDS
from spica_async.errors import InputError, SpicaError
from spica_async.tls import HTTPS, tls_refusal

URL_VARIABLE: Final = "SPICA_BUS_MANAGEMENT"

_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Management:
    """A broker's management API and who we are there."""

    url: URL
    authorization: SecretStr

    @classmethod
    def from_option(
        cls,
        text: str | None,
        address: BrokerAddress,
        environ: Mapping[str, str] = os.environ,
    ) -> Management | None:
        """Read `--management`, or else the variable `SPICA_BUS_MANAGEMENT`; none without both.

        The broker's own user stands in for one that the URL lacks.

        Raises:
            InputError: it is not an http or https URL.
        """
        source = "--management"
        if text is None:
            source, text = URL_VARIABLE, environ.get(URL_VARIABLE)
            if not text:
                return None
        try:
            url = URL(text)
        except ValueError:
            url = URL()
        if url.scheme not in {"http", "https"} or not url.host:
            raise InputError(f"{source}: not a URL such as http://user:password@host:15672")
        user, password = url.user, url.password or ""
        if user is None:
            user, password = address.user, address.password.get_secret_value()
        login = b64encode(f"{user}:{password}".encode()).decode()
        return cls(url.with_user(None), SecretStr(f"Basic {login}"))


@dataclass(frozen=True, slots=True)
class ConsumerTimeout:
    """How long a consumer of a queue may hold a message, as far as the queue itself tells.

    `set_by` names the policy or the argument; without either, `seconds` is none and the node's
    configuration decides.
    """

    queue: str
    seconds: float | None = None
    set_by: str | None = None

    def allows(self, hard_limit_seconds: float) -> bool:
        """Whether it leaves an evaluation so long, with what is around it, as far as is known."""
        return self.seconds is None or hard_limit_seconds + HOLD_MARGIN_SECONDS <= self.seconds


async def consumer_timeouts(
    management: Management, virtual_host: str, queues: Sequence[str]
) -> list[ConsumerTimeout]:
    """Look up the consumer timeout of each queue.

    Raises:
        SpicaError: the management API did not answer as one does.
    """
    headers = {"Authorization": management.authorization.get_secret_value()}
    timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        return [await _look_up(session, management.url, virtual_host, name) for name in queues]


async def _look_up(
    session: aiohttp.ClientSession, base: URL, virtual_host: str, queue: str
) -> ConsumerTimeout:
    path = f"{base.raw_path.rstrip('/')}/api/queues/{quote(virtual_host, safe='')}/{queue}"
    url = base.with_path(path, encoded=True)
    try:
        async with session.get(url, allow_redirects=False) as response:
            response.raise_for_status()
            facts = await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        status = f"HTTP {error.status}" if isinstance(error, aiohttp.ClientResponseError) else ""
        why = status or tls_refusal(error, HTTPS) or str(error) or "no answer"
        raise SpicaError(f"management API {base}: queue {queue}: {why}") from None
    return _read(queue, facts)


def _read(queue: str, facts: Any) -> ConsumerTimeout:
    by_argument = facts.get("arguments", {}).get("x-consumer-timeout")
    by_policy = (facts.get("effective_policy_definition") or {}).get("consumer-timeout")
    # Where both are set, the shorter one is the one to beware of.
    told = {
        "argument x-consumer-timeout": by_argument,
        f"policy {facts.get('policy')}": by_policy,
    }
    known = {by: ms / 1000 for by, ms in told.items() if ms is not None}
    if not known:
        return ConsumerTimeout(queue)
    set_by = min(known, key=known.__getitem__)
    return ConsumerTimeout(queue, known[set_by], set_by)
