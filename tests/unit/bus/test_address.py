"""A broker's address: read from options and environment, shown without its password."""

from __future__ import annotations

import asyncio
import copy
import ssl
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pki import server_context
from yarl import URL

from spica_async.bus.address import BrokerAddress
from spica_async.errors import InputError

SECRET = "s3cr:et/@#%ü"
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


def read(url: str | None = None, **environ: str) -> BrokerAddress:
    return BrokerAddress.from_options(url, environ=environ)


def refusal(url: str | None = None, **environ: str) -> str:
    with pytest.raises(InputError) as found:
        read(url, **environ)
    return str(found.value)


def test_all_that_a_url_can_say() -> None:
    address = read(f"amqp://ann:{quote(SECRET, safe='')}@mq.example:5999/a%2Fb?heartbeat=7")

    assert (address.host, address.port, address.user) == ("mq.example", 5999, "ann")
    assert address.password.get_secret_value() == SECRET
    assert (address.virtual_host, address.heartbeat_seconds) == ("a/b", 7)
    assert address.ssl_context is None
    assert address.shown == "amqp://ann@mq.example:5999/a%2Fb"


def test_what_a_url_leaves_open() -> None:
    address = read("amqp://mq")

    assert (address.port, address.virtual_host, address.heartbeat_seconds) == (5672, "/", 30)
    assert (address.user, address.password.get_secret_value()) == ("guest", "guest")
    assert address.full_url == "amqp://guest:guest@mq:5672/?heartbeat=30"
    assert read("amqp://mq/") == read("amqp://mq/%2F") == address


def test_credentials_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\nsecond line\n")

    whole = read("amqp://mq", SPICA_BUS_USER="ann", SPICA_BUS_PASSWORD=SECRET)
    from_file = read("amqp://ann@mq", SPICA_BUS_PASSWORD_FILE=str(file))
    from_url = read("amqp://ann:url@mq", SPICA_BUS_USER="bob", SPICA_BUS_PASSWORD=SECRET)

    assert (whole.user, whole.password.get_secret_value()) == ("ann", SECRET)
    assert from_file == whole
    assert (from_url.user, from_url.password.get_secret_value()) == ("ann", "url")


@given(TEXTS, TEXTS)
def test_the_client_library_reads_the_url_as_we_do(user: str, password: str) -> None:
    url = f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@[::1]:1/a%20b%25"
    address = read(url)
    seen = URL(address.full_url)

    assert (seen.user, seen.password, seen.host, seen.port) == (user, password, "::1", 1)
    assert seen.path == "/a b%" == f"/{address.virtual_host}"
    assert seen.query["heartbeat"] == "30"


def test_nothing_shows_the_password() -> None:
    address = read("amqp://ann@mq", SPICA_BUS_PASSWORD="hunter2")

    shown = f"{address} {address!r} {address!s} {asdict(address)} {copy.copy(address)} %s" % address
    assert "hunter2" not in shown
    assert "hunter2" in address.full_url


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.9", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("mq", False),
    ],
)
def test_the_broker_beside_us(host: str, *, loopback: bool) -> None:
    assert read(f"amqp://{host}").is_loopback is loopback


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://mq", "amqp:// or amqps://"),
        ("amqp:mq", "amqp:// or amqps://"),
        ("mq:5672", "amqp:// or amqps://"),
        ("amqp://", "no host"),
        ("amqp://ann@:5672", "no host"),
        ("amqp://mq:0", "from 1 to 65535"),
        ("amqp://mq:65536", "from 1 to 65535"),
        ("amqp://mq:amqp", "from 1 to 65535"),
        ("amqp://[::1", "not a URL"),
        ("amqp://mq/a/b", "%2F"),
        ("amqp://mq//", "%2F"),
        ("amqp://mq/50%", "two hexadecimal digits"),
        ("amqp://mq/%ff", "virtual host"),
        ("amqp://m q", "blank"),
        ("amqp://mq?heartbeat=0", "heartbeat"),
        ("amqp://mq?heartbeat=", "heartbeat"),
        ("amqp://mq?heartbeat=1e3", "heartbeat"),
        ("amqp://mq?heartbeat=65535", "heartbeat"),
        ("amqps://mq?no_verify_ssl=1", "only heartbeat"),
        ("amqp://ann@mq", "SPICA_BUS_PASSWORD"),
        (None, "--bus"),
    ],
)
def test_mistakes(url: str | None, words: str) -> None:
    message = refusal(url)

    assert message.startswith("--bus: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("special", list("/?#[]@:% \\\n"))
def test_a_message_never_has_a_piece_of_a_password(special: str) -> None:
    for url in (f"amqp://ann:top{special}secret@mq", f"amqp://ann:top{special}secret@mq:x"):
        try:
            message = str(read(url))
        except InputError as error:
            message = str(error)
        assert "top" not in message
        assert "secret" not in message


def test_two_passwords_of_the_environment_are_one_too_many(tmp_path: Path) -> None:
    message = refusal("amqp://mq", SPICA_BUS_PASSWORD="a", SPICA_BUS_PASSWORD_FILE="b")

    assert message.startswith("SPICA_BUS_PASSWORD_FILE: ")


def test_a_password_file_that_gives_none(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\nsecond")
    binary.write_bytes(b"\xff\xfe")

    for path, words in [
        (tmp_path / "none", "no such file"),
        (tmp_path, "directory"),
        (empty, "first line is empty"),
        (binary, "UTF-8"),
    ]:
        message = refusal("amqp://ann@mq", SPICA_BUS_PASSWORD_FILE=str(path))
        assert message.startswith(f"SPICA_BUS_PASSWORD_FILE: {path}: ")
        assert words in message


@pytest.mark.parametrize("option", ["ca", "cert", "key"])
def test_certificates_without_encryption_are_a_mistake(option: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^--{option}: only amqps:// is encrypted"):
        BrokerAddress.from_options(
            "amqp://mq",
            ca=tmp_path if option == "ca" else None,
            cert=tmp_path if option == "cert" else None,
            key=tmp_path if option == "key" else None,
            environ={},
        )


def test_amqps_trusts_what_the_system_trusts_unless_configured_otherwise() -> None:
    address = read("amqps://mq")

    assert address.port == 5671
    assert address.shown == "amqps://guest@mq:5671/"
    assert address.ssl_context is not None
    assert address.ssl_context.verify_mode is ssl.CERT_REQUIRED
    assert address.ssl_context.check_hostname


def secured(pki: Path, ca: str, **own: str) -> BrokerAddress:
    return BrokerAddress.from_options(
        "amqps://localhost",
        ca=pki / ca,
        cert=pki / own["cert"] if "cert" in own else None,
        key=pki / own["key"] if "key" in own else None,
        environ={},
    )


async def shake_hands(pki: Path, address: BrokerAddress) -> str:
    """The client's name in the eyes of a server that asks for a certificate."""
    server = server_context(pki, asks=True)
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ((name,),) = writer.get_extra_info("peercert")["subject"]
        seen.set_result(name[1])
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=server) as listener:
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=address.ssl_context, server_hostname=address.host
        )
        await reader.read()
        writer.close()
    return await seen


async def test_certificates_of_both_sides_are_used(pki: Path) -> None:
    address = secured(pki, "ca.pem", cert="client.pem", key="client.key")

    assert await shake_hands(pki, address) == "client"


async def test_a_certificate_and_its_key_may_share_a_file(pki: Path) -> None:
    both = pki / "both.pem"
    both.write_text((pki / "client.pem").read_text() + (pki / "client.key").read_text())

    assert await shake_hands(pki, secured(pki, "ca.pem", cert="both.pem")) == "client"


async def test_a_broker_that_a_stranger_vouches_for_is_refused(pki: Path) -> None:
    address = secured(pki, "stranger.pem", cert="client.pem", key="client.key")

    with pytest.raises(ssl.SSLCertVerificationError):
        await shake_hands(pki, address)


@pytest.mark.parametrize(
    ("ca", "own", "option", "words"),
    [
        ("none.pem", {}, "--ca", "no such file"),
        ("ca.key", {}, "--ca", "no certificates"),
        ("names", {}, "--ca", "no certificates"),
        ("ca.pem", {"cert": "none.pem"}, "--cert", "no such file"),
        ("ca.pem", {"cert": "client.pem"}, "--cert", "the same file"),
        ("ca.pem", {"cert": "client.pem", "key": "server.key"}, "--cert", "server.key"),
        ("ca.pem", {"cert": "client.pem", "key": "none.key"}, "--key", "no such file"),
        ("ca.pem", {"cert": "client.pem", "key": "encrypted.key"}, "--key", "encrypted"),
        ("ca.pem", {"key": "client.key"}, "--key", "--cert"),
    ],
)
def test_files_that_do_not_do(
    pki: Path, ca: str, own: dict[str, str], option: str, words: str
) -> None:
    with pytest.raises(InputError) as found:
        secured(pki, ca, **own)

    message = str(found.value)
    assert message.startswith(f"{option}: ")
    assert words in message
