"""Every error is answered with a `Problem` document, RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from schemas.daemon import Problem
from spica_async.errors import InputError, SpicaError
from spica_async.journal.port import SweepUnknownError
from spica_async.service.port import ArtifactUnknownError, QueueFullError, WrongStateError

log = structlog.get_logger(__name__)

PROBLEM_TYPE: Final = "application/problem+json"
LATER: Final = {"Retry-After": "10"}
"""Headers of an answer that is another one in some seconds."""


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer that says what the problem is.

    Args:
        status: the HTTP status.
        detail: for a person; line breaks become semicolons.
        headers: further ones.
    """
    line = "; ".join(part.strip() for part in detail.splitlines() if part.strip())
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=line)
    return Response(
        problem.model_dump_json(), status, headers=dict(headers or {}), media_type=PROBLEM_TYPE
    )


def describe_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems with which a route may answer, for the OpenAPI document."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }


def answer_problems(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Have every error that a route may raise answered with a problem.

    Args:
        app: the application.
        routes: all that there will be.
    """

    def spica(_: Request, error: Exception) -> Response:
        match error:
            case SweepUnknownError() | ArtifactUnknownError():
                return problem_response(HTTPStatus.NOT_FOUND, str(error))
            case WrongStateError():
                return problem_response(HTTPStatus.CONFLICT, str(error))
            case InputError():
                return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        if not isinstance(error, QueueFullError):
            log.warning("http.unavailable", why=str(error))
        return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error), LATER)

    app.add_exception_handler(SpicaError, spica)
    app.add_exception_handler(HTTPException, partial(_http, routes))
    app.add_exception_handler(RequestValidationError, _invalid)


def _http(routes: Sequence[BaseRoute], request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # it is registered for no other
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = f"there is no {request.url.path}"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = {"Allow": ", ".join(_methods(routes, request))}
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=allow)
        detail = f"{request.url.path} knows no {request.method}"
        return problem_response(error.status_code, detail, allow)
    return problem_response(error.status_code, detail, error.headers)


def _methods(routes: Sequence[BaseRoute], request: Request) -> list[str]:
    """What may be done with a path, by all of its routes."""
    found = {"OPTIONS"}
    for route in routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # it is registered for no other
    return problem_response(
        HTTPStatus.UNPROCESSABLE_ENTITY, "\n".join(map(_describe, error.errors()))
    )


def _describe(details: Mapping[str, Any]) -> str:
    """E.g. `limit: input should be less than or equal to 1000, not '5000'`."""
    name = ".".join(str(step) for step in details["loc"][1:]) or str(details["loc"][0])
    if details["type"] == "missing":
        return f"{name}: required"
    problem = str(details["msg"])
    return f"{name}: {problem[0].lower()}{problem[1:]}, not {details['input']!r}"
