"""Configurations through every way in: a file, the daemon's HTTP and its queue of commands."""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import httpx2 as httpx
import yaml
from support.daemon_http import http_client, running
from support.fake_control import FakeControl

from fuzzing.harness import Wrong
from fuzzing.mutation import change_bytes, change_document, change_lines, encoded
from schemas.config import SmartSearchConfig
from spica_async.bus.port import Message
from spica_async.config.load import load_config
from spica_async.config.submission import config_from_document, read_submission
from spica_async.errors import InputError
from spica_async.plan.scaling_policies import filter_scaling_policies
from spica_async.report.folder import config_document
from spica_async.service.commands import read_command

Way = Literal["file", "yaml body", "json body", "command", "yaml over http", "json over http"]

_EXAMPLES: Final = Path(__file__).parents[2] / "examples"
_LONGEST_BYTES: Final = 1024 * 1024
"""As `documents.MOST_BYTES`; a person's file is as a rule shorter."""
_LONGEST_LINE: Final = 3000
_LONGEST_OVER_HTTP: Final = 40_000
"""There, all problems of a document stand in one line."""
_WAYS: Final[tuple[Way, ...]] = ("file", "yaml body", "json body", "command")
_PLACE: Final = re.compile(
    r"\bline \d+|^.{1,300}?(\[|: )|^not valid|^not a UTF-8|^not a JSON object|^longer than"
    r"|^a configuration (is|of)|^the configuration|more problems$"
)
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a configuration, and the way that it takes."""

    way: Way
    text: bytes


# YAML that few people know; each stands for a value.
_HOSTILE: Final = (
    *("!!python/object/apply:os.system [true]", "!!python/name:os.system", "!python/none x"),
    *("!!bool maybe", "!!bool [a]", "!!int ''", "!!int x", "!!int 0x", "!!int [1]", "!!float x"),
    *("!!float ''", "!!timestamp x", "!!timestamp 2001-99-99", "2001-99-99", "2001-01-01"),
    *("2001-12-14t21:59:43.10-99:99", "2001-12-14 21:59:43.1234567890123 Z", "!!null x"),
    *("!!map [a]", "!!map abc", "!!map {}", "!!seq {a: b}", "!!seq abc", "!!str [a]", "!!str {}"),
    *("!!set {a, b}", "!!set [a]", "!!omap [a: 1]", "!!omap [a]", "!!omap {a: b}", "!!pairs [[a]]"),
    *("!!binary AAAA", "!!binary '@'", "!!binary \u00e9", "!!binary [a]", "!<> x", "!<!> x", "! x"),
    *("190:20:30", "190:20:30.15", "-1:0", "0x1F", "0o17", "017", "0b11", "1_000", "1__0", "_1"),
    *(".inf", "-.INF", ".nan", "~", "Null", "yes", "No", "on", "OFF", "+1", "1e3", "1.0e+3"),
    *("-1.0e-400", "1.0e+400", "1e400", "0x" + "f" * 5000, "0b" + "1" * 20000, "9" * 5000),
    *("1:" * 3000 + "1", "-0x" + "f" * 4000, "1" + "_0" * 3000, ".1" + "1" * 9000),
    *("&a [*a]", "&a {a: *a}", "*unknown", "&a &b x", "&a", "*", "&\u00e9 x", "<<", "[<<: 1]"),
    *("{<<: {a: 1}}", "{<<: [{a: 1}, {a: 2}]}", "{<<: 1}", "{<<: [1]}", "{<<: &m {<<: *m}}", "="),
    *("{? [a] : b}", "{? {a: b} : c}", "{1: a, 1.0: b}", "{true: a, yes: b}", "{null: a}"),
    *("{2001-01-01: a}", "{? &k [*k] : v}", "{.nan: a, .nan: b}", "{a: 1, a: 2}", "{? a}", "{:}"),
    *("'", '"', '"\\ud800"', '"\\x00"', '"\\U0010ffff"', '"\\U00110000"', '"\\xq"', '"a\\\n b"'),
    *("|\n  a\n b", ">\n", "|9\n a", "|-+\n a", "@a", "`a", "%a", "- a", "-", "?", ":", ", ", "#"),
    *("[", "]", "{", "}", "[,]", "{,}", "[a, ]", "[a b: c]", "a: b: c", "!", "!!", "!a!b c"),
    *(
        "\ufeff",
        "a\ufeffb",
        "\x00",
        "\x07",
        "\x85",
        "\u2028",
        "\ud83d\ude00",
        "\ufffe",
        "\t",
        "a\tb",
    ),
    *("--- a", "...", "\n---\n", "\n...\n", "\n%YAML 9.9\n---\n", "\n%TAG ! x\n---\n", "\n- a"),
)


class Documents:
    """See the module.

    Args:
        folder: for files, and home of relative paths.
        loop: that a daemon's server runs in.
        url: of the server.
        client: talks to it.
    """

    def __init__(
        self, folder: Path, loop: asyncio.Runner, url: str, client: httpx.AsyncClient
    ) -> None:
        self._folder = folder
        self._loop = loop
        self._url = url
        self._client = client
        self._texts = [path.read_text() for path in sorted(_EXAMPLES.glob("*.yaml"))]
        self._documents: list[dict[str, Any]] = [yaml.safe_load(text) for text in self._texts]
        # With all that may be written, so that all of it is changed.
        whole = [config_document(SmartSearchConfig.model_validate(d)) for d in self._documents]
        self._documents += whole

    def make(self, rng: random.Random) -> Document:
        """See `Subject.make`."""
        way = rng.choice(_WAYS)
        if rng.random() < 0.05:
            way = rng.choice(("yaml over http", "json over http"))
        if way in ("file", "yaml body", "yaml over http"):
            text = self._yaml(rng)
        else:
            text = self._json(rng, wrapped=way != "command")
        return Document(way, text[:_LONGEST_BYTES])

    def try_one(self, case: Document) -> str:
        """See `Subject.try_one`."""
        try:
            config = self._read(case)
            filter_scaling_policies(config)
        except InputError as error:
            refusal = str(error)
        else:
            return self._keep(config)
        over_http = case.way.endswith("http")
        check_refusal(refusal, longest=_LONGEST_OVER_HTTP if over_http else _LONGEST_LINE)
        return "refused"

    def _keep(self, config: SmartSearchConfig) -> str:
        # As a journal keeps it, which must be read as the same again.
        kept = json.dumps(config_document(config))
        again = SmartSearchConfig.model_validate_json(kept)
        if again != config:
            raise Wrong(f"a sound configuration is read otherwise from a journal: {kept}")
        return "sound"

    def _read(self, case: Document) -> SmartSearchConfig:
        match case.way:
            case "file":
                path = self._folder / "sweep.yaml"
                path.write_bytes(case.text)
                return load_config(path)
            case "yaml body" | "json body":
                is_yaml = case.way == "yaml body"
                return read_submission(case.text, is_yaml=is_yaml).config
            case "command":
                return _from_command(case.text)
        return self._loop.run(self._post(case))

    async def _post(self, case: Document) -> SmartSearchConfig:
        kind = "application/yaml" if case.way == "yaml over http" else "application/json"
        answer = await self._client.post(
            f"{self._url}/v1/sweeps", content=case.text, headers={"Content-Type": kind}, timeout=60
        )
        if answer.status_code == 201:
            where = f"{self._url}/v1/sweeps/{answer.json()['sweep_id']}"
            kept = (await self._client.get(where)).json()["config"]
            return SmartSearchConfig.model_validate_json(json.dumps(kept))
        if answer.status_code != 422:
            raise Wrong(f"status {answer.status_code}: {answer.text[:2000]}")
        raise InputError(answer.json()["detail"])

    def _yaml(self, rng: random.Random) -> bytes:
        text = rng.choice(self._texts)
        match rng.randrange(8):
            case 0 | 1:
                document = change_document(rng, rng.choice(self._documents))
                text = yaml.safe_dump(document, allow_unicode=rng.random() < 0.5)
            case 2:
                return change_bytes(rng, text.encode())
            case 3:
                text = change_lines(rng, text)
            case 4 | 5:
                text = _with_hostile(rng, text)
            case 6:
                text = json.dumps(change_document(rng, rng.choice(self._documents)))
            case _:
                text = _large(rng, text)
        return encoded(rng, text)

    def _json(self, rng: random.Random, *, wrapped: bool) -> bytes:
        document: Any = rng.choice(self._documents)
        if wrapped:
            document = {"config": document, "priority": 3, "use_cache": False}
        else:
            data = {"action": "submit", "submission": {"config": document}}
            document = {"type": "spica.sweep.command.v1", "id": "a", "source": "b", "data": data}
        text = json.dumps(change_document(rng, document), indent=rng.choice((None, 1)))
        match rng.randrange(6):
            case 0:
                return change_bytes(rng, text.encode())
            case 1:
                text = change_lines(rng, text)
            case 2 if rng.random() < 0.3:
                text = text.replace('"tp": 4', f'"tp": {_large_value(rng)}')
                text = text.replace('"max_rounds"', json.dumps("k" * rng.choice((10, 10**6))))
            case 3 if rng.random() < 0.3:
                block = rng.choice(('"sweep": {', '"workload": {', '"search_space": {', "{"))
                text = text.replace(block, block + _many_keys(rng), 1)
        return encoded(rng, text)


@contextmanager
def opened() -> Iterator[Documents]:
    """What reads configurations, with a server of a daemon that runs nothing."""
    control = FakeControl()
    control.room = 10**9
    with tempfile.TemporaryDirectory(prefix="spica-fuzz-") as folder, asyncio.Runner() as loop:
        server = running(control)
        url = loop.run(server.__aenter__())
        client = http_client()
        try:
            yield Documents(Path(folder), loop, url, client)
        finally:
            loop.run(client.aclose())
            loop.run(server.__aexit__(None, None, None))


def check_refusal(text: str, *, longest: int = _LONGEST_LINE) -> None:
    """A refusal says in short lines what is wrong, and where.

    Raises:
        Wrong: it does not.
    """
    lines = [line.strip() for line in text.split("\n")]
    if lines[0].endswith("sweep.yaml:"):
        del lines[0]
    for line in lines:
        told = re.sub(r"^\S*sweep\.yaml: ", "", line)
        if not told:
            raise Wrong(f"an empty line in a refusal: {text[:1000]!r}")
        if len(told) > longest:
            raise Wrong(f"a refusal of endless length: {told[:1000]!r}")
        if _UNPRINTABLE.search(told):
            raise Wrong(f"a refusal with unprintable characters: {told[:1000]!r}")
        if not _PLACE.search(told):
            raise Wrong(f"a refusal that names no place: {told[:1000]!r}")
    if len(lines) > 200:
        raise Wrong(f"a refusal of many lines: {len(lines)}: {text[:1000]!r}")


def _from_command(text: bytes) -> SmartSearchConfig:
    command = read_command(Message(text, "a", "spica.sweep.command.v1"))
    if command.data.submission is None:
        raise InputError("submission: required")
    return config_from_document(command.data.submission.config)


def _with_hostile(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    for _ in range(rng.randint(1, 2)):
        where = rng.randrange(len(lines))
        hostile = rng.choice(_HOSTILE)
        key, colon, _value = lines[where].partition(": ")
        match rng.randrange(5):
            case 0 | 1 | 2 if colon:
                lines[where] = f"{key}: {hostile}"
            case 3:
                lines[where] = f"  {hostile}: {rng.choice(_HOSTILE)}"
            case _:
                lines.insert(where, hostile)
    return "\n".join(lines)


def _large(rng: random.Random, text: str) -> str:
    """Much of something, as a rule little and at times up to what a daemon takes."""
    match rng.randrange(4):
        case 0:
            key = rng.choice(
                ("backend", "gpu_budget", "isl", "concurrency", "target", "max_rounds")
            )
            return re.sub(rf"(\b{key}:).*", lambda found: f"{found[1]} {_large_value(rng)}", text)
        case 1:
            block = rng.choice(("sweep:", "workload:", "search_space:", "goal:"))
            keys = _many_keys(rng).replace('"', "").replace(", ", "\n  ")
            return text.replace(f"{block}\n", f"{block}\n  {keys}\n", 1)
        case 2:
            bomb = ["x0: &x0 [a, a, a, a, a, a, a, a, a]"]
            bomb += [
                f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * 9)}]"
                for level in range(1, rng.choice((3, 5, 9, 30)))
            ]
            last = len(bomb) - 1
            use = rng.choice(
                (f"backend: *x{last}", f"model_name: *x{last}", f"gpu_budget: *x{last}")
            )
            return "\n".join([*bomb, text.replace("search_space:", f"search_space:\n  {use}")])
        case _:
            return "\n".join([text, *("# " + "x" * 100 for _ in range(_count(rng) // 100))])


def _large_value(rng: random.Random) -> str:
    count = _count(rng)
    one = rng.choice(("agg", "1", "{}", "[]", '"a"', "{tp: 1}", "null", "1.5"))
    return rng.choice(
        (
            "[" + ", ".join([one] * count) + "]",
            "[" + ", ".join(f'"{number}"' for number in range(count)) + "]",
            "[" + ", ".join(map(str, range(count))) + "]",
            "[" * min(count, 20_000) + "]" * min(count, 20_000),
            "[" * min(count, 20_000),
            '{"a": ' * min(count, 20_000) + "1" + "}" * min(count, 20_000),
            '"' + "x" * count * 4 + '"',
            "9" * count,
            "{" + ", ".join(f'"k{number}": 1' for number in range(count)) + "}",
        )
    )


def _many_keys(rng: random.Random) -> str:
    return "".join(f'"key_{number}": 1, ' for number in range(_count(rng)))


def _count(rng: random.Random) -> int:
    return rng.choice((10, 100, 1000, 1000, 1000, 200_000 if rng.random() < 0.2 else 5000))
