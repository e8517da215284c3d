"""The application: a daemon's verbs as HTTP, with who may use them and how much."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client import CollectorRegistry
from pydantic.json_schema import models_json_schema
from starlette.middleware import Middleware

from schemas.daemon import Problem, SweepSubmission
from schemas.lifecycle import SweepEvent
from spica_async.service.http.forms import OneForm
from spica_async.service.http.gate import Gate
from spica_async.service.http.limits import Streams
from spica_async.service.http.metrics import Metrics, Observed
from spica_async.service.http.problems import answer_problems
from spica_async.service.http.routes import make_router
from spica_async.service.http.settings import HttpSettings
from spica_async.service.port import Control

_TITLE: Final = "Spica's tuning daemon"
_VERSION: Final = "1"
_REF: Final = "#/components/schemas/{model}"


def make_app(control: Control, settings: HttpSettings) -> FastAPI:
    """The application that speaks for a daemon.

    Args:
        control: does what is asked for.
        settings: who is let in, and what is put up with. `state.streams` of the application ends
            the event streams, which `server.serve` does; `state.metrics` are its own.
    """
    streams = Streams(settings.streams, retry_seconds=settings.retry_seconds)
    metrics = Metrics(settings.registry or CollectorRegistry())
    app = FastAPI(
        title=_TITLE,
        version=_VERSION,
        # Their pages would load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # What it would tell a collector, `/metrics` tells.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        middleware=[
            Middleware(Observed, metrics=metrics),
            Middleware(OneForm),
            Middleware(Gate, tokens=settings.tokens),
        ],
    )
    app.state.streams = streams
    app.state.metrics = metrics
    router = make_router(control, settings, streams, metrics)
    answer_problems(app, [*app.routes, *router.routes], retry_seconds=settings.retry_seconds)
    app.include_router(router)
    _describe_bodies(app)
    return app


def _describe_bodies(app: FastAPI) -> None:
    """Add to the OpenAPI document the models that no route has for a parameter or an answer."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=_TITLE, version=_VERSION, routes=app.routes)
            _, others = models_json_schema(
                [
                    (SweepSubmission, "validation"),
                    (SweepEvent, "serialization"),
                    (Problem, "serialization"),
                ],
                ref_template=_REF,
            )
            known = document.setdefault("components", {}).setdefault("schemas", {})
            app.openapi_schema = document
            known.update(
                {name: known.get(name, schema) for name, schema in others["$defs"].items()}
            )
        return app.openapi_schema

    # A method of each application is what FastAPI documents for this.
    app.openapi = openapi  # type: ignore[method-assign]  # as said above
