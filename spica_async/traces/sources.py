"""What the address of a trace may be, for those who offer it and for those who fetch it."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from spica_async.errors import InputError

DEFAULT_SCHEMES: Final = ("http", "https", "s3", "gs")
"""What a worker fetches unless its options say otherwise. A request names the address, so those who
may send requests could else have files of its host read, or whatever else fsspec opens."""

_SCHEME: Final = "[a-z][a-z0-9+.-]*"


def scheme_of(url: str) -> str:
    """The scheme in front of `://`, in lower case; empty for what fsspec takes for a local path."""
    found = re.match(f"({_SCHEME})://", url, re.IGNORECASE)
    return found[1].lower() if found else ""


def is_chained(url: str) -> bool:
    """Whether fsspec would take it for several URLs, as in `simplecache::s3://bucket/key`.

    Such a one is not taken, because each of its parts may have secrets in places of its own.
    """
    return "::" in url and not url.lower().startswith(("http://", "https://"))


def read_schemes(text: str) -> tuple[str, ...]:
    """The schemes of a comma-separated list.

    Raises:
        InputError: naming `--trace-schemes`.
    """
    schemes = tuple(word.strip().lower() for word in text.split(","))
    for scheme in schemes:
        if not re.fullmatch(_SCHEME, scheme):
            raise InputError(f"--trace-schemes: {scheme!r} is no scheme, such as https")
    return schemes


def refused(scheme: str, allowed: Collection[str]) -> str | None:
    """Why an address of this scheme is not fetched; None if it is."""
    if scheme in allowed:
        return None
    what = f"{scheme}://" if scheme else "an address without a scheme"
    return f"{what} is not fetched here: --trace-schemes allows {', '.join(allowed)}"
