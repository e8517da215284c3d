"""The texts that a native library refers to, among them the names of all fields that it parses."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_RELA = 4
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_\-]*")
_LONGEST = 40


class _Section(NamedTuple):
    kind: int
    address: int
    offset: int
    size: int


def names_in(library: Path) -> set[str]:
    """Texts of a Rust library that could be names of fields.

    A field's name lies in a constant array of pointers and lengths, each pointer of which the
    loader has to relocate: so the relocations lead to every one of them.

    Args:
        library: A 64-bit little-endian ELF file.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as image:
        assert image[:6] == b"\x7fELF\x02\x01"
        sections = list(_sections(image))
        found = set()
        for section in sections:
            if section.kind != _RELA:
                continue
            table = image[section.offset : section.offset + section.size]
            for where, _, text in struct.iter_unpack("<QQq", table):
                name = _text(image, sections, where, text)
                if name is not None:
                    found.add(name)
        return found


def _text(image: mmap.mmap, sections: list[_Section], pointer: int, text: int) -> str | None:
    at, start = _offset(sections, pointer), _offset(sections, text)
    if at is None or start is None:
        return None
    (length,) = struct.unpack_from("<Q", image, at + 8)
    found = image[start : start + length] if 0 < length <= _LONGEST else b""
    return found.decode() if _NAME.fullmatch(found) else None


def _sections(image: mmap.mmap) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    for number in range(count):
        _, kind, _, address, offset, length = struct.unpack_from(
            "<IIQQQQ", image, table + number * size
        )
        yield _Section(kind, address, offset, length)


def _offset(sections: list[_Section], address: int) -> int | None:
    """Where in the file an address is; None for one that has no bytes there."""
    for kind, start, offset, size in sections:
        if start and kind not in {_RELA, 8} and start <= address < start + size:
            return offset + address - start
    return None
