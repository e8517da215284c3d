"""A PostgreSQL server that is reached by TLS: what does not go together, in words that help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from support.postgres import PostgresNode

from spica_async.errors import InputError
from spica_async.journal.sql import SqlJournal
from spica_async.storage.errors import StorageError


@pytest.fixture
def server(postgres: PostgresNode) -> Iterator[PostgresNode]:
    """A server whose settings are put back."""
    yield postgres
    postgres.use_no_tls()


@pytest.fixture
def database(postgres: PostgresNode) -> str:
    return postgres.add_database()


def url_of(
    server: PostgresNode, database: str, mode: str, host: str = "localhost", **files: Path
) -> str:
    named = "".join(f"&{option}={quote(str(path))}" for option, path in files.items())
    url = server.url(database).replace("127.0.0.1", host)
    return f"{url}?sslmode={mode}{named}"


async def refusal(url: str) -> str:
    with pytest.raises((StorageError, InputError)) as refused:
        async with SqlJournal.open(url):
            pass
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_a_trusted_server_is_used(server: PostgresNode, database: str, pki: Path) -> None:
    server.use_tls(pki)
    url = url_of(server, database, "verify-full", sslrootcert=pki / "ca.pem")
    async with SqlJournal.open(url) as journal:
        assert await journal.sweeps() == []


async def test_an_untrusted_server(server: PostgresNode, database: str, pki: Path) -> None:
    server.use_tls(pki)
    url = url_of(server, database, "verify-ca", sslrootcert=pki / "stranger.pem")
    assert re.search("certificate is not trusted: .*; sslrootcert in the URL", await refusal(url))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_server_of_another_name(
    server: PostgresNode, database: str, pki: Path, host: str
) -> None:
    server.use_tls(pki, "elsewhere")
    ca = pki / "ca.pem"
    said = await refusal(url_of(server, database, "verify-full", host, sslrootcert=ca))
    assert re.search(f"certificate is for another name: .*'{host}'.*sslrootcert", said)
    # Who asks for no more than that somebody known vouches for it has what was asked for.
    async with SqlJournal.open(url_of(server, database, "verify-ca", host, sslrootcert=ca)):
        pass


async def test_an_expired_certificate(server: PostgresNode, database: str, pki: Path) -> None:
    server.use_tls(pki, "expired")
    said = await refusal(url_of(server, database, "verify-full", sslrootcert=pki / "ca.pem"))
    assert "certificate has expired" in said


async def test_a_server_without_tls(server: PostgresNode, database: str, pki: Path) -> None:
    url = url_of(server, database, "verify-full", sslrootcert=pki / "ca.pem")
    assert "rejected SSL upgrade" in await refusal(url)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"sslrootcert": "none.pem"}, "sslrootcert in the URL: .*none.pem: no such file"),
        ({"sslcert": "none.pem"}, "sslcert in the URL: .*none.pem: no such file"),
        ({"sslcert": "client.pem", "sslkey": "no.key"}, "sslkey in the URL: .*: no such file"),
        ({"sslrootcert": "names"}, "sslrootcert .*in the URL: not in PEM format"),
        ({"sslcert": "names", "sslkey": "client.key"}, "sslcert .*in the URL: not in PEM format"),
        ({"sslcert": "client.pem", "sslkey": "server.key"}, "do not go together"),
    ],
)
async def test_files_that_are_none(
    server: PostgresNode, database: str, pki: Path, files: dict[str, str], words: str
) -> None:
    named = "".join(f"&{option}={pki / name}" for option, name in files.items())
    said = await refusal(f"{server.url(database)}?sslmode=require{named}")
    assert re.search(words, said)
