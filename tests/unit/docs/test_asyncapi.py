"""The AsyncAPI document agrees with the models and the topology, and is sound in itself.

What AsyncAPI 3.0 asks of a document is written out here as far as this document goes: the fields
that each object must have and may have, and references that lead somewhere.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from schemas import generate
from schemas.envelope import MAX_MESSAGE_BYTES, Envelope
from schemas.lifecycle import Lifecycle, SweepEvent, SweepStarted
from spica_async.bus import topology

PATH = Path(__file__).parents[3] / "docs" / "asyncapi.json"
DOCUMENT: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))

# Object kind -> fields that it must have, fields that it may have.
FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "document": (
        {"asyncapi", "info"},
        {"id", "servers", "defaultContentType", "channels", "operations", "components"},
    ),
    "info": ({"title", "version"}, {"description", "termsOfService", "contact", "license", "tags"}),
    "server": (
        {"host", "protocol"},
        {"protocolVersion", "pathname", "description", "title", "variables", "security", "tags"},
    ),
    "channel": (
        set(),
        {"address", "messages", "title", "summary", "description", "parameters", "bindings"},
    ),
    "parameter": (set(), {"enum", "default", "description", "examples", "location"}),
    "operation": (
        {"action", "channel"},
        {"title", "summary", "description", "security", "tags", "bindings", "messages", "reply"},
    ),
    "reply": (set(), {"address", "channel", "messages"}),
    "reply address": ({"location"}, {"description"}),
    "message": (
        set(),
        {
            *{"headers", "payload", "correlationId", "contentType", "name", "title", "summary"},
            *{"description", "tags", "externalDocs", "bindings", "examples", "traits"},
        },
    ),
    "payload": ({"schema", "schemaFormat"}, set()),
    "correlation id": ({"location"}, {"description"}),
    "channel binding": ({"is", "bindingVersion"}, {"queue", "exchange"}),
    "queue": (set(), {"name", "durable", "exclusive", "autoDelete", "vhost"}),
    "exchange": (set(), {"name", "type", "durable", "autoDelete", "vhost"}),
    "message binding": ({"bindingVersion"}, {"contentEncoding", "messageType"}),
}
RUNTIME_EXPRESSION = re.compile(r"\$message\.(header|payload)#(/[^/]+)+")


def objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of the document with its kind."""
    yield "document", DOCUMENT
    yield "info", DOCUMENT["info"]
    yield from (("server", server) for server in DOCUMENT["servers"].values())
    for channel in DOCUMENT["channels"].values():
        yield "channel", channel
        yield from (("parameter", p) for p in channel.get("parameters", {}).values())
        binding = channel["bindings"]["amqp"]
        yield "channel binding", binding
        yield from ((kind, binding[kind]) for kind in ("queue", "exchange") if kind in binding)
    for operation in DOCUMENT["operations"].values():
        yield "operation", operation
        if "reply" in operation:
            yield "reply", operation["reply"]
            yield "reply address", operation["reply"]["address"]
    for message in DOCUMENT["components"]["messages"].values():
        yield "message", message
        yield "payload", message["payload"]
        yield "message binding", message["bindings"]["amqp"]
        if "correlationId" in message:
            yield "correlation id", message["correlationId"]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(reference: str, document: Any, path: Path) -> Any:
    """What a reference in the document at `path` leads to."""
    file, _, pointer = reference.partition("#")
    if file:
        document = json.loads((path.parent / file).read_text(encoding="utf-8"))
    for key in pointer.split("/")[1:]:
        document = document[key]
    return document


def test_the_longest_message_is_named() -> None:
    assert f" {MAX_MESSAGE_BYTES} bytes" in DOCUMENT["info"]["description"]


def test_every_message_that_is_published_travels_somewhere() -> None:
    envelopes = (Envelope, SweepEvent)
    messages = {m.__name__: m for m in generate.PUBLISHED if issubclass(m, envelopes)}
    documented = DOCUMENT["components"]["messages"]
    assert set(documented) == set(messages)
    used = {
        reference.rsplit("/", 1)[1]
        for channel in DOCUMENT["channels"].values()
        for reference in references(channel["messages"])
    }
    assert used == set(messages)
    for name, message in documented.items():
        model = messages[name]
        kind, described = model.model_fields["type"].default, model.model_fields["data"].annotation
        if model is SweepEvent:
            event = SweepEvent.of("s", 1, SweepStarted(run=1))
            kind, described = event.type.replace(event.data.kind, "{kind}"), model
        assert message["name"] == message["bindings"]["amqp"]["messageType"] == kind
        assert message["title"] == name
        assert message["summary"] == (inspect.getdoc(described) or "").splitlines()[0]
        schema = resolve(message["payload"]["schema"]["$ref"], DOCUMENT, PATH)
        assert schema["title"] == name


def test_queues_and_topics_are_those_of_the_services() -> None:
    channels = DOCUMENT["channels"]
    addresses = {name: channel["address"] for name, channel in channels.items()}
    assert addresses == {
        "requests": topology.requests_queue("X").name.replace("X", "{engine_fingerprint}"),
        "results": topology.results_queue("X").name.replace("X", "{coordinator}"),
        "dead": topology.DEAD_QUEUE.name,
        "evaluationStarted": topology.EVALUATION_STARTED_TOPIC,
        "workerHeartbeat": topology.WORKER_HEARTBEAT_TOPIC,
        "workerJoined": topology.WORKER_JOINED_TOPIC,
        "workerLeft": topology.WORKER_LEFT_TOPIC,
        "sweepEvents": "{kind}",
        "commands": topology.COMMANDS_QUEUE.name,
        "answers": "{reply_to}",
        "control": None,
    }


def test_exchanges_are_those_of_the_services() -> None:
    exchanges = {
        name: channel["bindings"]["amqp"]["exchange"]
        for name, channel in DOCUMENT["channels"].items()
        if "exchange" in channel["bindings"]["amqp"]
    }
    described = {(exchange["name"], exchange["type"]) for exchange in exchanges.values()}
    assert described == {(topology.EVENTS_EXCHANGE, "topic"), (topology.CONTROL_EXCHANGE, "fanout")}
    assert exchanges["control"]["name"] == topology.CONTROL_EXCHANGE
    assert all(exchange["durable"] for exchange in exchanges.values())


def test_a_channel_names_its_parameters_and_no_others() -> None:
    for channel in DOCUMENT["channels"].values():
        in_address = re.findall(r"{(\w+)}", channel["address"] or "")
        assert in_address == list(channel.get("parameters", {}))


def test_every_channel_has_its_senders_and_its_readers() -> None:
    actions: dict[str, set[str]] = {}
    for name, operation in DOCUMENT["operations"].items():
        (tag,) = operation["tags"]
        channel = operation["channel"]["$ref"].rsplit("/", 1)[1]
        assert name == f"{tag['name']}.{operation['action']}.{channel}"
        actions.setdefault(channel, set()).add(operation["action"])
    # Nobody of ours sends to the dead letters, which the broker does, or commands daemons.
    one_sided = {
        "dead": {"receive"},
        "commands": {"receive"},
        "answers": {"send"},
        "sweepEvents": {"send"},
    }
    assert actions == {
        name: one_sided.get(name, {"send", "receive"}) for name in DOCUMENT["channels"]
    }


def test_every_kind_of_sweep_event_is_named() -> None:
    (lifecycle, _) = get_args(Lifecycle)
    kinds = {
        kind
        for model in get_args(lifecycle)
        for kind in get_args(model.model_fields["kind"].annotation)
    }
    described = DOCUMENT["channels"]["sweepEvents"]["parameters"]["kind"]["description"]
    assert set(re.split(r", | or ", described)) == kinds


def test_objects_have_the_fields_that_they_must_have_and_no_unknown_ones() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    for kind, found in objects():
        required, optional = FIELDS[kind]
        assert required <= set(found), (kind, found)
        assert set(found) <= required | optional, (kind, found)
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] in {"send", "receive"}
    for channel in DOCUMENT["channels"].values():
        binding = channel["bindings"]["amqp"]
        kind = {"queue": "queue", "routingKey": "exchange"}[binding["is"]]
        assert set(binding) == {"is", kind, "bindingVersion"}
    for room in ("servers", "channels", "operations"):
        assert all(re.fullmatch(r"[\w.\-]+", key) for key in DOCUMENT[room])


def test_references_lead_somewhere() -> None:
    found = list(references(DOCUMENT))
    assert found
    for reference in found:
        assert resolve(reference, DOCUMENT, PATH)


def test_expressions_point_to_what_the_messages_have() -> None:
    for _, found in objects():
        if "location" not in found:
            continue
        assert RUNTIME_EXPRESSION.fullmatch(found["location"])
    for message in DOCUMENT["components"]["messages"].values():
        if "correlationId" not in message:
            continue
        assert message["correlationId"]["location"] == "$message.payload#/data/evaluation_id"
        schema = resolve(message["payload"]["schema"]["$ref"], DOCUMENT, PATH)
        data = resolve(schema["properties"]["data"]["$ref"], schema, PATH)
        assert "evaluation_id" in data["properties"]
