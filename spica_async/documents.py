"""Reads a document that a person wrote, JSON or YAML, by one set of rules for every way in.

YAML's loader and JSON's each let through what the other refuses, and both let through what nothing
further on can hold: a key written twice, of which the last wins, NaN, half a character, numbers of
a thousand digits, and aliases that stand for more than any memory has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

import yaml

from schemas.config import SmartSearchConfig
from spica_async.errors import InputError, printable

MOST_BYTES: Final = 1024 * 1024
"""The longest document that is read; a configuration with every key set has a few thousand."""

_MOST_VALUES: Final = 20_000
_MOST_LEVELS: Final = 30
_LARGEST: Final = 2**63 - 1
_LONGEST_NUMBER: Final = 100
_LONGEST_KEY: Final = 60
_LONGEST_PROBLEM: Final = 300


def decode(body: bytes) -> str:
    """The text of a document, without the mark that some editors begin it with.

    Raises:
        InputError: it is no text in UTF-8, or too long for what it is to be.
    """
    if len(body) > MOST_BYTES:
        raise InputError(f"longer than {MOST_BYTES:,} bytes")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not a UTF-8 text file ({error.reason})") from None


def parse_yaml(text: str) -> dict[str, Any]:
    """The mapping that a YAML text is.

    Raises:
        InputError: it is none, or breaks a rule; the message names the line or the field.
    """
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else "somewhere"
        raise InputError(f"{where}: not valid YAML: {_one_line(error.problem)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"unacceptable character #x{error.character:04x}: {_one_line(error.reason)}"
        raise InputError(f"line {line}: not valid YAML: {problem}") from None
    except RecursionError:
        raise InputError("not valid YAML: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        # The other is of scalars that look like a number and are none.
        raise InputError(f"not valid YAML: {_one_line(error)}") from None
    except (AttributeError, LookupError, TypeError):
        # As the library fails where a tag that is written out does not go with its value.
        raise InputError("not valid YAML: a value does not go with its tag") from None
    if not isinstance(document, dict):
        blocks = ", ".join(SmartSearchConfig.model_fields)
        raise InputError(f"a configuration is a mapping with the blocks {blocks}")
    check_values(document)
    return document


def to_yaml(document: Mapping[str, Any]) -> str:
    """The text that `parse_yaml` reads as this document; its keys stay in their order."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False)


def parse_json(text: str) -> dict[str, Any]:
    """The mapping that a JSON text is.

    Raises:
        InputError: it is none, or breaks a rule; the message names the line or the field.
    """
    try:
        document = json.loads(text, object_pairs_hook=_mapping, parse_constant=_refuse_constant)
    except RecursionError:
        raise InputError("not valid JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError("not a JSON object")
    check_values(document)
    return document


# What YAML 1.1 reads otherwise than anybody means it: 012 is 10, and 1:30 is 90.
_ODD_BASE: Final = re.compile(r"[-+]?(?:0[0-9_]+$|[^:]+:)")
# What it takes for a text, and every other language, YAML 1.2 among them, for a number.
_EXPONENT: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")


class _Dumper(yaml.SafeDumper):
    """YAML whose texts are quoted where `_Loader`, too, would take them for something else."""


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key written twice, and more values than a configuration can have.

    Both are looked for in what is written: a merge may well name a key that is set beside it, and
    what aliases and merges stand for is counted before it is made.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = 0
        self._values_in: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]  # as its stubs are
        before = self._values
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._values_in:
                raise _problem(f"*{event.anchor} stands within itself", event.start_mark)
            self._values += self._values_in[id(node)]
        else:
            self._values += 1
            self._values_in[id(node)] = self._values - before
        if self._values > _MOST_VALUES:
            raise _problem(_too_many_values(), event.start_mark)
        return node

    # The stubs take an anchor for a mapping of all anchors.
    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.tag.endswith((":int", ":float")):
            if len(node.value) > _LONGEST_NUMBER:
                raise _problem("a number of that length", node.start_mark)
            if _ODD_BASE.match(node.value):
                problem = f"{node.value} counts in eights or sixties here; write a decimal number"
                raise _problem(problem, node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise _problem(f"{shown_key(key)} is written twice", key_node.start_mark)
            seen.add(key)
        return node


def _one_line(problem: object) -> str:
    return printable(" ".join(str(problem).split()), _LONGEST_PROBLEM)


# As in JSON, a date is a text.
_Loader.yaml_implicit_resolvers = {
    first: [one for one in resolvers if not one[0].endswith(":timestamp")]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
for each in (_Loader, _Dumper):
    each.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def _problem(text: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.composer.ComposerError(None, None, text, mark)


def _too_many_values() -> str:
    return f"a configuration of more than {_MOST_VALUES:,} values"


class _Twice:
    """Stands for the value of a key that JSON has twice, until it is known where that is."""


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        mapping[key] = _Twice() if key in mapping else value
    return mapping


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def check_values(document: Mapping[str, Any]) -> None:
    """Refuse what neither a journal nor a message nor the engine can hold.

    Args:
        document: mappings, lists and plain values, as a parser makes them.

    Raises:
        InputError: the message begins with the path of the value.
    """
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    values = 0
    while waiting:
        path, value = waiting.pop()
        values += 1
        if values + len(waiting) > _MOST_VALUES:
            raise InputError(_too_many_values())
        if len(path) > _MOST_LEVELS:
            raise InputError(f"{dotted(path[:4])}: nested more than {_MOST_LEVELS} levels deep")
        problem = _problem_of(value)
        if problem is not None:
            raise InputError(f"{dotted(path)}: {problem}")
        if isinstance(value, Mapping):
            waiting.extend(_fields(path, value))
        elif isinstance(value, list):
            waiting.extend(((*path, index), entry) for index, entry in enumerate(value))


def _fields(
    path: tuple[str | int, ...], value: Mapping[Any, Any]
) -> Iterable[tuple[tuple[str | int, ...], Any]]:
    for key, entry in value.items():
        problem = _problem_of(key)
        if problem is not None:
            raise InputError(f"{dotted((*path, str(key)))}: {problem}, in a key")
        # Whether a key must be a text is checked with the rest of the configuration.
        yield (*path, str(key)), entry


def _problem_of(value: object) -> str | None:
    if isinstance(value, _Twice):
        return "is written twice"
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"a whole number is at most {_LARGEST:,} here"
    if isinstance(value, str) and "\0" in value:
        return "has a NUL character"
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        return "has half of a surrogate pair, which is no character"
    return None


def shown_key(key: object) -> str:
    """A key as a message can have it: in one line, not too long for one, and seen if empty."""
    text = " ".join(str(key).encode(errors="replace").decode().replace("\0", "?").split())
    return printable(text, _LONGEST_KEY) if text else repr(str(key)[:_LONGEST_KEY])


def dotted(path: Iterable[str | int]) -> str:
    """The path of a field as a message can have it, e.g. `search_space.knobs[2]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.startswith("["):  # As pydantic names a mapping's key.
            text += shown_key(step)
        else:
            text += f".{shown_key(step)}" if text else shown_key(step)
    return text or "the document"
