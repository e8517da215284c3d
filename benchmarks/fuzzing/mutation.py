"""Spoils documents, texts and bytes at random; the same way from the same random numbers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

STRANGE: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2, 7, 0.5, -0.0, 1e-300, 1e308, 5e-324),
    *(2**31, 2**53, 2**63, 2**64, 10**18, 10**30, 10**400, -(10**30), 1e9, 1e-9),
    *(float("nan"), float("inf"), -float("inf")),
    *([], [[]], [None], [1, 1], [0, "a"], {}, {"": 0}, {"a": None}, {"a": {"b": []}}),
    *("", " ", "x", "0", "1", "-1", "1e3", "nan", "true", "null", "~", "..", "/", "/dev/zero"),
    *("\x00", "a\nb", "a\rb", "\x1b[31m", "\u2028", "\ufeff", "\ud800", "\u00e9" * 300),
    *("x" * 300, "x" * 5000, "../" * 200, "2001-01-01", "0x1f", "1:30", "{}", "[]", "%s%n{0}"),
)
"""Values that are seldom what is meant."""

_BAD_BYTES: Final = (b"\x00", b"\xff", b"\xfe\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xef\xbb\xbf")
_LONGEST_REPETITION: Final = 2000


def change_document(rng: random.Random, document: Any, values: Sequence[Any] = STRANGE) -> Any:
    """A copy with one to four changes of what stands where.

    Args:
        rng: decides.
        document: of dicts, lists and scalars, as of JSON.
        values: to put in the place of others.
    """
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(all_places(document))
        if not places:
            return rng.choice(values)
        holder, key = rng.choice(places)
        rng.choice(_CHANGES)(rng, holder, key, values)
    if rng.random() < 0.01:
        document = rng.choice(values)
    return document


def change_bytes(rng: random.Random, text: bytes) -> bytes:
    """A copy with one to eight changes of bytes or of runs of them."""
    changed = bytearray(text)
    for _ in range(rng.randint(1, 8)):
        where = rng.randrange(len(changed) + 1)
        upto = min(len(changed), where + rng.choice((1, 1, 2, 10, 100)))
        match rng.randrange(7):
            case 0:
                changed[where:upto] = rng.randbytes(upto - where)
            case 1:
                del changed[where:upto]
            case 2:
                changed[where:where] = rng.choice(_BAD_BYTES)
            case 3:
                changed[where:upto] = changed[where:upto] * rng.choice((2, 3, _LONGEST_REPETITION))
            case 4:
                changed[where:where] = bytes(
                    rng.choices(b"[]{}()<>:,.-+eE\"'\\#&*!|%@`~? \t\r\n0", k=3)
                )
            case 5:
                source = rng.randrange(len(changed) + 1)
                changed[where:where] = changed[source : source + rng.choice((1, 10, 100))]
            case _:
                if rng.random() < 0.2:
                    del changed[where:]
    return bytes(changed)


def change_lines(rng: random.Random, text: str) -> str:
    """A copy with one to three lines doubled, dropped, moved or indented otherwise."""
    lines = text.split("\n")
    for _ in range(rng.randint(1, 3)):
        where = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines.insert(rng.randrange(len(lines) + 1), lines[where])
            case 1 if len(lines) > 1:
                del lines[where]
            case 2:
                lines[where] = rng.choice((" ", "  ", "\t", "- ")) + lines[where]
            case 3:
                lines[where] = lines[where].strip()
            case _:
                lines.insert(where + 1, lines[where])
    return rng.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines)


def encoded(rng: random.Random, text: str) -> bytes:
    """The text as bytes, as a rule those that are expected."""
    if rng.random() < 0.9:
        return text.encode("utf-8", "surrogatepass")
    how = rng.choice(("utf-8-sig", "utf-16", "utf-32", "latin-1"))
    return text.encode(how, "replace")


def all_places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a document, as what holds it and under which key or at which index."""
    items: Any = ()
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = list(enumerate(document))
    for key, value in items:
        yield document, key
        yield from all_places(value)


def _replace(rng: random.Random, holder: Any, key: Any, values: Sequence[Any]) -> None:
    holder[key] = copy.deepcopy(rng.choice(values))


def _drop(_rng: random.Random, holder: Any, key: Any, _values: Sequence[Any]) -> None:
    del holder[key]


def _retype(rng: random.Random, holder: Any, key: Any, _values: Sequence[Any]) -> None:
    value = holder[key]
    holder[key] = rng.choice((str(value), [value], {"value": value}, repr(value)))


def _scale(rng: random.Random, holder: Any, key: Any, values: Sequence[Any]) -> None:
    value = holder[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        _replace(rng, holder, key, values)
        return
    factor = rng.choice((0, -1, 2, 3, 1000, 10**9, 0.5, 1e-6, 1e300))
    try:
        holder[key] = value * factor
    except OverflowError:
        holder[key] = factor


def _rename(rng: random.Random, holder: Any, key: Any, _values: Sequence[Any]) -> None:
    if not isinstance(holder, dict):
        return
    name = str(key)
    names = (
        name.upper(),
        name + "s",
        name[:-1],
        "",
        name + "\n",
        f"x{name}",
        name.replace("_", "-"),
    )
    holder[rng.choice(names)] = holder.pop(key)


def _add(rng: random.Random, holder: Any, key: Any, values: Sequence[Any]) -> None:
    value = copy.deepcopy(rng.choice(values))
    if isinstance(holder, dict):
        holder[rng.choice((f"{key}_", "x", "__class__", "model_config", "\x00", "\ud800"))] = value
    else:
        holder.insert(rng.randrange(len(holder) + 1), value)


def _multiply(rng: random.Random, holder: Any, key: Any, _values: Sequence[Any]) -> None:
    times = rng.choice((2, 3, 100))
    holder[key] = [copy.deepcopy(holder[key]) for _ in range(times)]


def _nest(rng: random.Random, holder: Any, key: Any, _values: Sequence[Any]) -> None:
    value = holder[key]
    for _ in range(rng.choice((1, 2, 50, 150))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    holder[key] = value


_CHANGES: Final[tuple[Callable[[random.Random, Any, Any, Sequence[Any]], None], ...]] = (
    *(_replace, _replace, _replace, _replace),
    *(_drop, _drop, _retype, _scale, _scale, _rename, _add, _multiply, _nest),
)
