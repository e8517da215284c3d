"""The AsyncAPI document: which messages travel where, and who sends them.

The names of queues, exchanges and topics are those of the services' topology; a test compares.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from schemas.control import RollCalled, SweepCancelled
from schemas.daemon import SweepCommandAnswered, SweepCommanded
from schemas.envelope import MAX_MESSAGE_BYTES, Envelope
from schemas.events import EvaluationStarted, WorkerHeartbeat, WorkerJoined, WorkerLeft
from schemas.lifecycle import TYPE_PREFIX, TYPE_SUFFIX, SweepEvent
from schemas.messages import EvaluationCompleted, EvaluationRequested

SCHEMAS: Final = "../schemas/json"
"""Where the schemas lie as seen from the document."""

_SCHEMA_FORMAT: Final = "application/schema+json;version=draft-07"
"""AsyncAPI's own kind of schema has another notion of discriminators."""

_BINDING: Final = "0.3.0"
"""Of the AMQP bindings that every binding below keeps to."""

MessageType = type[Envelope[Any]] | type[SweepEvent]


@dataclass(frozen=True)
class _Channel:
    """A queue, or an exchange with the routing key (none: it is ignored) of what goes through it.

    `parameters` tells what stands for each `{name}` in the address.
    """

    name: str
    address: str | None
    description: str
    messages: tuple[MessageType, ...]
    exchange: tuple[str, str] | None = None
    parameters: tuple[tuple[str, str], ...] = ()

    def document(self) -> dict[str, Any]:
        """The channel object."""
        binding: dict[str, Any] = {"is": "queue", "queue": _lasting()}
        if self.exchange is not None:
            name, kind = self.exchange
            binding = {"is": "routingKey", "exchange": {"name": name, "type": kind} | _durable()}
        channel: dict[str, Any] = {
            "address": self.address,
            "description": self.description,
            "messages": {m.__name__: _ref("components", "messages", m) for m in self.messages},
            "bindings": {"amqp": binding | {"bindingVersion": _BINDING}},
        }
        if self.parameters:
            channel["parameters"] = {
                name: {"description": description} for name, description in self.parameters
            }
        return channel


_EVENTS: Final = ("spica.events", "topic")
_CONTROL: Final = ("spica.control", "fanout")

_KINDS: Final = (
    "sweep.submitted, sweep.started, branch.enumerated, candidate.measured, best.improved,"
    " front.changed, sweep.finished, sweep.failed, sweep.paused or sweep.cancelled"
)

_CHANNELS: Final = (
    _Channel(
        "requests",
        "spica.requests.{engine_fingerprint}",
        "Evaluations to be made, for workers with exactly this engine.",
        (EvaluationRequested,),
        parameters=(("engine_fingerprint", "tells one engine's versions from another's"),),
    ),
    _Channel(
        "results",
        "spica.results.{coordinator}",
        "What evaluations came to, for the coordinator that asked. It is named in the requests'"
        " reply_to property.",
        (EvaluationCompleted,),
        parameters=(("coordinator", "the sweep's id"),),
    ),
    _Channel(
        "dead",
        "spica.dead",
        "What nobody could handle: rejected, or given back more often than its queue allows. The"
        " x-death and x-delivery-count headers tell where and why.",
        (EvaluationRequested, EvaluationCompleted),
    ),
    _Channel(
        "evaluationStarted",
        "worker.evaluation.started",
        "An evaluation has a slot.",
        (EvaluationStarted,),
        exchange=_EVENTS,
    ),
    _Channel(
        "workerHeartbeat",
        "worker.heartbeat",
        "A worker tells of itself and its load.",
        (WorkerHeartbeat,),
        exchange=_EVENTS,
    ),
    _Channel(
        "workerJoined",
        "worker.joined",
        "A worker has begun.",
        (WorkerJoined,),
        exchange=_EVENTS,
    ),
    _Channel(
        "workerLeft",
        "worker.left",
        "A worker has ended in good order.",
        (WorkerLeft,),
        exchange=_EVENTS,
    ),
    _Channel(
        "sweepEvents",
        "{kind}",
        "What happens to the sweeps of daemons, each event at least once and those of a sweep in"
        " the order of their sequence. A subscriber knows by the id what comes again.",
        (SweepEvent,),
        exchange=_EVENTS,
        parameters=(("kind", _KINDS),),
    ),
    _Channel(
        "commands",
        "spica.commands",
        "What daemons are asked to do; each command goes to one of them. A submission whose id"
        " comes again makes no other sweep.",
        (SweepCommanded,),
    ),
    _Channel(
        "answers",
        "{reply_to}",
        "What has come of a command, in the queue that its reply_to property names.",
        (SweepCommandAnswered,),
        parameters=(("reply_to", "of whoever sent the command"),),
    ),
    _Channel(
        "control",
        None,
        "What every worker is told. The exchange passes everything on, whatever its routing key.",
        (RollCalled, SweepCancelled),
        exchange=_CONTROL,
    ),
)

_CORRELATED_BY_EVALUATION: Final = (EvaluationRequested, EvaluationCompleted, EvaluationStarted)

_REPLIES: Final = {"requests": "results", "commands": "answers"}

# Who, does what, where.
_OPERATIONS: Final = (
    ("coordinator", "send", "requests"),
    ("coordinator", "receive", "results"),
    ("coordinator", "receive", "dead"),
    ("coordinator", "send", "control"),
    ("coordinator", "receive", "evaluationStarted"),
    ("coordinator", "receive", "workerHeartbeat"),
    ("coordinator", "receive", "workerJoined"),
    ("coordinator", "receive", "workerLeft"),
    ("daemon", "receive", "commands"),
    ("daemon", "send", "answers"),
    ("daemon", "send", "sweepEvents"),
    ("worker", "receive", "requests"),
    ("worker", "send", "results"),
    ("worker", "send", "evaluationStarted"),
    ("worker", "send", "workerHeartbeat"),
    ("worker", "send", "workerJoined"),
    ("worker", "send", "workerLeft"),
    ("worker", "receive", "control"),
)


def asyncapi_document() -> dict[str, Any]:
    """The document of all messages of coordinators, workers and daemons, in AsyncAPI 3.0."""
    messages = dict.fromkeys(message for channel in _CHANNELS for message in channel.messages)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "spica-async",
            "version": "1.0.0",
            "description": (
                "Coordinators ask workers for evaluations over RabbitMQ; daemons are told what to"
                " do, and tell what happens. Every body is a"
                f" CloudEvents envelope in JSON of at most {MAX_MESSAGE_BYTES} bytes, whose type"
                " ends with the message's version. Readers ignore fields that they do not know."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "broker": {
                "host": "{host}:{port}",
                "protocol": "amqp",
                "protocolVersion": "0.9.1",
                "description": "RabbitMQ 3.10 or later; amqps works alike",
                "variables": {"host": {"default": "localhost"}, "port": {"default": "5672"}},
                "security": [{"$ref": "#/components/securitySchemes/password"}],
            }
        },
        "channels": {channel.name: channel.document() for channel in _CHANNELS},
        "operations": {
            f"{who}.{action}.{channel}": _operation(who, action, channel)
            for who, action, channel in _OPERATIONS
        },
        "components": {
            "messages": {message.__name__: _message(message) for message in messages},
            "securitySchemes": {"password": {"type": "userPassword"}},
        },
    }


def asyncapi_text() -> str:
    """The document as the text of its file."""
    return json.dumps(asyncapi_document(), indent=2) + "\n"


def _message(model: MessageType) -> dict[str, Any]:
    fields = model.model_fields
    name = fields["type"].default
    summary = fields["data"].annotation.__doc__
    if issubclass(model, SweepEvent):
        name, summary = f"{TYPE_PREFIX}{{kind}}{TYPE_SUFFIX}", SweepEvent.__doc__
    message: dict[str, Any] = {
        "name": name,
        "title": model.__name__,
        "summary": (summary or "").strip().partition("\n")[0],
        "contentType": "application/json",
        "payload": {
            "schemaFormat": _SCHEMA_FORMAT,
            "schema": {"$ref": f"{SCHEMAS}/{model.__name__}.json"},
        },
        "bindings": {"amqp": {"messageType": name, "bindingVersion": _BINDING}},
    }
    if model in _CORRELATED_BY_EVALUATION:
        message["correlationId"] = {"location": "$message.payload#/data/evaluation_id"}
    return message


def _operation(who: str, action: str, channel: str) -> dict[str, Any]:
    operation = {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "tags": [{"name": who}],
    }
    if channel in _REPLIES:
        operation["reply"] = {
            "address": {"location": "$message.header#/reply_to"},
            "channel": {"$ref": f"#/channels/{_REPLIES[channel]}"},
        }
    return operation


def _ref(room: str, kind: str, model: MessageType) -> dict[str, str]:
    return {"$ref": f"#/{room}/{kind}/{model.__name__}"}


def _durable() -> dict[str, bool]:
    return {"durable": True, "autoDelete": False}


def _lasting() -> dict[str, bool]:
    return {**_durable(), "exclusive": False}
