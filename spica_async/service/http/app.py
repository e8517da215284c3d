"""The application: a daemon's verbs as HTTP, with who may use them and how much."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.middleware import Middleware
from starlette.responses import Response

from schemas.daemon import Problem, SweepSubmission
from schemas.lifecycle import SweepEvent
from spica_async.service.http.event_streams import NoMoreEventsError, Streams
from spica_async.service.http.metrics import Metrics, Observed
from spica_async.service.http.middleware import OneForm, TokenCheck
from spica_async.service.http.problems import answer_problems
from spica_async.service.http.routes import make_router
from spica_async.service.http.settings import HttpSettings
from spica_async.service.port import Control

_TITLE: Final = "Spica's tuning daemon"
_VERSION: Final = "1"
_REF: Final = "#/components/schemas/{model}"


def make_app(
    control: Control,
    settings: HttpSettings,
    stop: asyncio.Event,
    *,
    metrics: Metrics | None = None,
) -> FastAPI:
    """The application that speaks for a daemon.

    Args:
        control: the daemon's verbs.
        settings: the tokens that open it, and its limits.
        stop: ends event streams when it is set.
        metrics: the metrics to count in; none: new ones.
    """
    streams = Streams(settings.streams, stop)
    metrics = metrics or Metrics()
    app = FastAPI(
        title=_TITLE,
        version=_VERSION,
        # Their pages would load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # `/metrics` has it.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        middleware=[
            Middleware(Observed, metrics=metrics),
            Middleware(OneForm),
            Middleware(TokenCheck, tokens=settings.tokens),
        ],
    )
    router = make_router(control, settings, streams, metrics)
    answer_problems(app, [*app.routes, *router.routes])
    app.add_exception_handler(NoMoreEventsError, lambda *_: Response(status_code=204))
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
