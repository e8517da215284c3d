"""Changes to single values of a configuration, as they are typed on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spica_async.documents import parse_yaml
from spica_async.errors import InputError, printable

_LONGEST: Final = 100


def changed(document: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """A configuration with some values in place of its own.

    What it comes to is not checked: a key that nobody knows is named where the configuration is
    validated.

    Args:
        document: the configuration as it was read.
        changes: each is `block.key=value`; the value is YAML on one line.

    Raises:
        InputError: a change is none, or leads through a value that has no keys.
    """
    found = dict(document)
    for change in changes:
        path, separator, text = change.partition("=")
        keys = path.strip().split(".")
        if not separator or not all(keys):
            shown = printable(change, _LONGEST)
            raise InputError(f"--set {shown}: a change is block.key=value")
        _set(found, keys, _value(path, text))
    return found


def _value(path: str, text: str) -> object:
    try:
        document = parse_yaml(f"value: {text}")
    except InputError as error:
        raise InputError(f"--set {path.strip()}: {error}") from None
    if len(document) > 1:
        raise InputError(f"--set {path.strip()}: the value is not on one line")
    return document["value"]


def _set(document: dict[str, Any], keys: Sequence[str], value: object) -> None:
    *blocks, last = keys
    for depth, key in enumerate(blocks, start=1):
        # A block that is written with nothing in it is one.
        block = document.get(key)
        if not isinstance(block, Mapping | None):
            raise InputError(f"--set {'.'.join(keys)}: {'.'.join(keys[:depth])} has no keys")
        document[key] = dict(block or {})
        document = document[key]
    document[last] = value
