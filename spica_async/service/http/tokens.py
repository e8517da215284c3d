"""Tokens that a daemon takes: read from a file or a variable, kept as hashes."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from spica_async.errors import InputError, file_problem

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
    """What is known of the tokens: whether one that is shown is among them, not what they are."""

    digests: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, tokens: Iterable[str]) -> Self:
        """The tokens that are taken; none at all: nobody is asked for one."""
        return cls(tuple(_digest(token.encode()) for token in tokens))

    def __bool__(self) -> bool:
        return bool(self.digests)

    def accept(self, shown: bytes) -> bool:
        """Whether this is one of them; how long that takes tells nothing of them."""
        digest = _digest(shown)
        found = [hmac.compare_digest(digest, known) for known in self.digests]
        return any(found)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
