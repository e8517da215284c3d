"""The tokens that open a daemon: those of its user, and the one that it makes itself.

A daemon on the loopback that is given no token makes a new one at each start. Its file is in a
folder of the user's state that nobody else can look into, one for each address; who can read it is
the daemon's own user.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from platformdirs import user_state_path

from spica_async.errors import InputError, file_problem

_BYTES: Final = 32
_OF_OTHERS: Final = 0o077
_LONGEST: Final = 1000
TOKEN_VARIABLE: Final = "SPICA_DAEMON_TOKEN"  # noqa: S105  # the variable's name
SHORTEST_TOKEN: Final = 16
"""Characters; what is shorter can be guessed."""


def read_tokens(file: Path | None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The tokens of a file, one a line, or else that of the variable `SPICA_DAEMON_TOKEN`.

    Raises:
        InputError: naming the option or the variable: the file cannot be read or has no token, or
            a token is too short or has characters that no header may have. None is ever quoted.
    """
    source = f"--token-file {file}"
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{source}: not a text file") from None
        except OSError as error:
            raise InputError(f"{source}: {file_problem(error)}") from None
    else:
        source, text = TOKEN_VARIABLE, environ.get(TOKEN_VARIABLE, "")
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    if file is not None and not tokens:
        raise InputError(f"{source}: there is no token in it")
    for token in tokens:
        if (problem := token_problem(token)) is not None:
            raise InputError(f"{source}: {problem}")
    return tokens


def token_problem(text: str) -> str | None:
    """Why a text is no token; None: it may be one."""
    if len(text) < SHORTEST_TOKEN:
        return f"a token has at least {SHORTEST_TOKEN} characters"
    if not (text.isascii() and text.isprintable()) or " " in text:
        return "a token is of visible ASCII characters"
    return None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The digests of the tokens that a daemon takes."""

    digests: tuple[bytes, ...]

    @classmethod
    def of(cls, tokens: Iterable[str]) -> Self:
        """Keep the digests of some tokens, and not the tokens."""
        return cls(tuple(_digest(token.encode()) for token in tokens))

    def open_to(self, authorization: str) -> bool:
        """Whether a header shows one of them; how long that takes does not depend on them."""
        scheme, _, token = authorization.partition(" ")
        # Headers are read as latin-1, so this gives the bytes that were sent.
        digest = _digest(token.strip().encode("latin-1"))
        found = [hmac.compare_digest(digest, known) for known in self.digests]
        return any(found) and scheme.lower() == "bearer"


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(_BYTES)


def token_path(address: str, port: int) -> Path:
    """Where the token of the daemon at an address of this machine is kept.

    Args:
        address: the IP address.
        port: the port that the daemon listens at.

    Raises:
        RuntimeError: this user has no home.
    """
    name = f"{ipaddress.ip_address(address)}-{port}.token"
    return user_state_path("spica-async") / "daemons" / name


def addresses_of(host: str, port: int) -> list[str]:
    """The loopback addresses that a name or an address means, in numbers."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    addresses = dict.fromkeys(str(address[0]) for *_, address in found)
    return [address for address in addresses if ipaddress.ip_address(address).is_loopback]


@contextmanager
def kept_token(token: str, address: str, port: int) -> Iterator[Path]:
    """Keep a daemon's token for the clients of its user while the context is open.

    Args:
        token: the daemon's token.
        address: the IP address that it listens at.
        port: the port that it listens at.

    Raises:
        InputError: it cannot be kept where nobody else can read it.
    """
    try:
        path = token_path(address, port)
    except RuntimeError:
        raise InputError(
            "the daemon's token cannot be kept: this user has no home; set HOME or XDG_STATE_HOME,"
            " or give it a token with --token-file"
        ) from None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(path.parent, path.parent.lstat(), stat.S_ISDIR)
        with suppress(FileNotFoundError):
            _check(path, path.lstat(), stat.S_ISREG)
        _write(path, token)
    except OSError as error:
        raise InputError(
            f"the daemon's token cannot be kept in {path}: {file_problem(error)}; give it one with"
            " --token-file"
        ) from None
    try:
        yield path
    finally:
        with suppress(OSError, InputError):
            # Another daemon may have taken the address since.
            if read_own_token(address, port) == token:
                path.unlink()


def read_own_token(address: str, port: int) -> str | None:
    """The token of this user's daemon at an address; None: there is none.

    Raises:
        InputError: others could have put it there, or can read it, or it is no token.
    """
    try:
        path = token_path(address, port)
    except RuntimeError:
        return None
    try:
        _check(path.parent, path.parent.lstat(), stat.S_ISDIR)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="ascii", errors="replace") as file:  # noqa: PTH123  # it is open
            _check(path, os.fstat(descriptor), stat.S_ISREG)
            token = file.read(_LONGEST).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path}: {file_problem(error)}") from None
    if (problem := token_problem(token)) is not None:
        # It would be no header. What it is instead may be a secret all the same.
        raise InputError(f"{path}: {problem}: start the daemon again, or use --token-file")
    return token


def _write(path: Path, token: str) -> None:
    """Put a file in its place at once, whole, and at no time open to others."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123  # as above
            os.fchmod(descriptor, 0o600)
            file.write(token + "\n")
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _check(path: Path, found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    """See that something is of the right kind, and its user's alone.

    Raises:
        InputError: it is not.
    """
    if not is_kind(found.st_mode):
        problem = "is something else"
    elif found.st_uid != os.geteuid():
        problem = "is another user's"
    elif found.st_mode & _OF_OTHERS:
        problem = f"is open to others (mode {stat.S_IMODE(found.st_mode):o})"
    else:
        return
    raise InputError(
        f"{path}: {problem}, so no token is kept there: remove it, or use --token-file"
    )
