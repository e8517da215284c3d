"""Where the broker is and who we are there, without ever showing the password."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from pydantic import SecretStr

from spica_async.addresses import is_loopback
from spica_async.errors import InputError, file_problem

USER_VARIABLE: Final = "SPICA_BUS_USER"
PASSWORD_VARIABLE: Final = "SPICA_BUS_PASSWORD"  # noqa: S105  # the variable's name
PASSWORD_FILE_VARIABLE: Final = "SPICA_BUS_PASSWORD_FILE"  # noqa: S105  # the variable's name

DEFAULT_HEARTBEAT_SECONDS: Final = 30
_LONGEST_HEARTBEAT_SECONDS: Final = 65534
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_EVERY_BROKERS_FIRST_USER: Final = "guest"
_ENCODING_HINT: Final = "characters such as / ? # @ in a user or password are written as %2F, %3F"


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A RabbitMQ virtual host and the credentials for it. Its text never has the password.

    Attributes:
        host: name or IP address, without brackets.
        heartbeat_seconds: silence after which a connection counts as lost.
        ssl_context: set for amqps only, and then the broker's certificate is always verified.
    """

    host: str
    port: int
    user: str
    password: SecretStr
    virtual_host: str = "/"
    heartbeat_seconds: int = DEFAULT_HEARTBEAT_SECONDS
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_options(
        cls,
        url: str | None,
        *,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> BrokerAddress:
        """Read what a command was given.

        Args:
            url: the value of `--bus`, `amqp[s]://[user[:password]@]host[:port][/virtual-host]`
                with `?heartbeat=<seconds>` at will.
            ca: certificates to trust in place of the system's, in PEM format.
            cert: our own certificate in PEM format, for brokers that ask for one.
            key: its key, unless that is in the same file.
            environ: has the user and the password where the URL has none.

        Raises:
            InputError: naming the option or the variable to correct.
        """
        text = (url or "").strip()
        if not text:
            raise InputError("--bus: the broker's URL is missing; SPICA_BUS may give it, too")
        parts = _split(text)
        user, password = _credentials(parts, environ)
        assert parts.hostname is not None  # noqa: S101  # `_split` has checked it
        return cls(
            host=parts.hostname,
            port=_port(parts),
            user=user,
            password=SecretStr(password),
            virtual_host=_virtual_host(parts),
            heartbeat_seconds=_heartbeat(parts),
            ssl_context=_ssl_context(parts.scheme, ca, cert, key),
        )

    @property
    def shown(self) -> str:
        """The URL without the password, for people and logs."""
        return self._url(quote(self.user, safe=""))

    @property
    def full_url(self) -> str:
        """The URL with the password, for the client library and nobody else."""
        secret = quote(self.password.get_secret_value(), safe="")
        url = self._url(f"{quote(self.user, safe='')}:{secret}")
        return f"{url}?heartbeat={self.heartbeat_seconds}"

    @property
    def is_loopback(self) -> bool:
        """Whether the broker is on this very host, and so perhaps are all others."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return self.shown

    def _url(self, credentials: str) -> str:
        scheme = "amqps" if self.ssl_context else "amqp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        vhost = "" if self.virtual_host == "/" else quote(self.virtual_host, safe="")
        return f"{scheme}://{credentials}@{host}:{self.port}/{vhost}"


def _split(text: str) -> SplitResult:
    """The parts of a URL; messages quote none of it that may be a piece of the password."""
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise InputError("--bus: the URL has a blank or a control character in it")
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise InputError("--bus: a % in the URL is not followed by two hexadecimal digits")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise InputError(f"--bus: not a URL; {_ENCODING_HINT}") from None
    if parts.scheme not in _PORTS or not text.lower().startswith(f"{parts.scheme}://"):
        raise InputError("--bus: the URL must begin with amqp:// or amqps://")
    if parts.fragment:
        raise InputError(f"--bus: the URL has a # in it; {_ENCODING_HINT}")
    if not parts.hostname:
        raise InputError("--bus: the URL has no host")
    return parts


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise InputError(
            f"--bus: the port must be a number from 1 to 65535; {_ENCODING_HINT}"
        ) from None
    return port or _PORTS[parts.scheme]


def _virtual_host(parts: SplitResult) -> str:
    segment = parts.path.removeprefix("/")
    if "/" in segment:
        raise InputError("--bus: a / in the virtual host's name is written as %2F")
    return _decoded(segment, "virtual host") or "/"


def _heartbeat(parts: SplitResult) -> int:
    seconds = str(DEFAULT_HEARTBEAT_SECONDS)
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "heartbeat":
            # The client library knows some that would, for one, switch verification off.
            raise InputError("--bus: of the URL's query only heartbeat=<seconds> is known")
        seconds = value
    if not re.fullmatch("[0-9]{1,5}", seconds) or not (
        1 <= int(seconds) <= _LONGEST_HEARTBEAT_SECONDS
    ):
        raise InputError(
            f"--bus: heartbeat must be a number of seconds from 1 to {_LONGEST_HEARTBEAT_SECONDS}"
        )
    return int(seconds)


def _credentials(parts: SplitResult, environ: Mapping[str, str]) -> tuple[str, str]:
    """User and password: what the URL lacks is looked up in the environment."""
    user = _decoded(parts.username or "", "user")
    user = user or environ.get(USER_VARIABLE) or _EVERY_BROKERS_FIRST_USER
    if parts.password is not None:
        return user, _decoded(parts.password, "password")
    password, file = environ.get(PASSWORD_VARIABLE), environ.get(PASSWORD_FILE_VARIABLE)
    if password and file:
        raise InputError(f"{PASSWORD_FILE_VARIABLE}: {PASSWORD_VARIABLE} is set, too")
    if file:
        return user, _first_line(Path(file))
    if password:
        return user, password
    if user == _EVERY_BROKERS_FIRST_USER:
        return user, _EVERY_BROKERS_FIRST_USER
    raise InputError(
        f"--bus: no password for user {user}; it may be in the URL, in"
        f" {PASSWORD_VARIABLE}, or in the file named by {PASSWORD_FILE_VARIABLE}"
    )


def _decoded(text: str, what: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InputError(f"--bus: the {what} is not percent-encoded UTF-8") from None


def _first_line(path: Path) -> str:
    try:
        line = path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise InputError(f"{PASSWORD_FILE_VARIABLE}: {path}: {file_problem(error)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{PASSWORD_FILE_VARIABLE}: {path}: not a UTF-8 text file") from None
    if not line:
        raise InputError(f"{PASSWORD_FILE_VARIABLE}: {path}: the first line is empty")
    return line


def _ssl_context(
    scheme: str, ca: Path | None, cert: Path | None, key: Path | None
) -> ssl.SSLContext | None:
    given = {"--ca": ca, "--cert": cert, "--key": key}
    for option, path in given.items():
        if path is None:
            continue
        if scheme != "amqps":
            raise InputError(f"{option}: only amqps:// is encrypted, --bus is {scheme}://")
        _check_readable(option, path)
    if scheme != "amqps":
        return None
    if key and not cert:
        raise InputError("--key: a key needs its certificate: --cert")
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise InputError(f"--ca: {ca}: no certificates in PEM format") from None
    if cert:
        try:
            context.load_cert_chain(cert, key, password=_refuse_to_ask)
        except ssl.SSLError as error:
            raise InputError(
                f"--cert: {cert}: not a certificate in PEM format with its key in"
                f" {key or 'the same file'} ({error.reason or 'unreadable'})"
            ) from None
    return context


def _refuse_to_ask() -> NoReturn:
    """The library would ask a terminal for an encrypted key's passphrase."""
    raise InputError("--key: the key is encrypted; a service needs one that is not")


def _check_readable(option: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise InputError(f"{option}: {path}: {file_problem(error)}") from None
