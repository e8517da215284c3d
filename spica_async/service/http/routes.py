"""The routes of the daemon: submission, queries, orders and probes."""

from __future__ import annotations

import gzip
import zlib
from http import HTTPStatus
from io import BytesIO
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import structlog
from fastapi import APIRouter, Header, Query, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from schemas.artifact import Artifact
from schemas.daemon import CandidatePage, StoredState, SweepDetail, SweepSummary
from spica_async.config.submission import read_submission
from spica_async.errors import SpicaError
from spica_async.processes.threads import computed, with_files
from spica_async.service.http.event_streams import Streams, add_events
from spica_async.service.http.metrics import Metrics
from spica_async.service.http.problems import describe_problems, problem_response
from spica_async.service.http.request_body import JSON_TYPE, YAML_TYPES, read_body
from spica_async.service.http.settings import HttpSettings
from spica_async.service.port import MAX_NUMBER, MAX_PAGE, Control

log = structlog.get_logger(__name__)

_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        JSON_TYPE: {"schema": {"$ref": "#/components/schemas/SweepSubmission"}},
        **{
            kind: {"schema": {"type": "string", "description": "a configuration file"}}
            for kind in sorted(YAML_TYPES)
        },
    },
}
_MAX_JSON_BYTES: Final = 16 * 2**20
_Priority = Annotated[
    int | None, Query(ge=-100, le=100, description="goes before that of the body")
]
_IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=255, description="names this submission")
]
_UseCache = Annotated[bool | None, Query(description="goes before that of the body")]
_Before = Annotated[
    str | None, Query(max_length=300, description="where a page begins, from the one before's Link")
]
_Offset = Annotated[int, Query(ge=0, le=MAX_NUMBER, description="how many are left out before")]
_Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="how many at most")]


def make_router(
    control: Control, settings: HttpSettings, streams: Streams, metrics: Metrics
) -> APIRouter:
    """The routes of a daemon.

    Args:
        control: the daemon's verbs.
        settings: limits.
        streams: counts event streams, and ends them.
        metrics: what `/metrics` shows.
    """
    router = APIRouter()
    _add_submission(router, control, settings)
    _add_queries(router, control)
    _add_orders(router, control)
    add_events(router, control, streams)
    _add_probes(router, control, streams, metrics)
    return router


def _add_submission(router: APIRouter, control: Control, settings: HttpSettings) -> None:
    @router.post(
        "/v1/sweeps",
        status_code=HTTPStatus.CREATED,
        responses=describe_problems(408, 413, 415, 422, 503),
        openapi_extra={"requestBody": _BODY},
    )
    async def submit(
        request: Request,
        response: Response,
        priority: _Priority = None,
        use_cache: _UseCache = None,
        idempotency_key: _IdempotencyKey = None,
    ) -> SweepSummary:
        """Take in a sweep, to be run in its turn; the same key makes no other one."""
        body, is_yaml = await read_body(request, seconds=settings.body_seconds)
        # The longest that is allowed takes seconds to read, in which others are to be answered.
        submission = await computed(
            read_submission, body, is_yaml=is_yaml, priority=priority, use_cache=use_cache
        )
        await with_files(settings.files.check, submission.config)
        sweep = await control.submit(
            submission.config,
            priority=submission.priority,
            use_cache=submission.use_cache,
            token=idempotency_key,
        )
        response.headers["Location"] = f"/v1/sweeps/{sweep.sweep_id}"
        return sweep


def _add_queries(router: APIRouter, control: Control) -> None:
    @router.get("/v1/sweeps", responses=describe_problems(422))
    async def sweeps(
        response: Response,
        state: Annotated[StoredState | None, Query()] = None,
        before: _Before = None,
        offset: _Offset = 0,
        limit: _Limit = MAX_PAGE,
    ) -> list[SweepSummary]:
        """Some of the sweeps, or of those in one state, the latest submitted first.

        Where there are more, a `Link` leads to the next page: `<?...>; rel="next"`.
        """
        page = await control.sweeps(state, before=before, offset=offset, limit=limit)
        if page.next is not None:
            query = {"limit": limit, "before": page.next} | ({"state": state} if state else {})
            response.headers["Link"] = f'<?{urlencode(query)}>; rel="next"'
        return list(page.sweeps)

    @router.get("/v1/sweeps/{sweep_id}", responses=describe_problems(404))
    async def sweep(sweep_id: str) -> SweepDetail:
        """One sweep, with its progress and its best candidates."""
        return await control.sweep(sweep_id)

    @router.get("/v1/sweeps/{sweep_id}/candidates", responses=describe_problems(404, 422))
    async def candidates(sweep_id: str, offset: _Offset = 0, limit: _Limit = 100) -> CandidatePage:
        """Some of its candidates, in the order in which they were measured."""
        return await control.candidates(sweep_id, offset=offset, limit=limit)

    @router.get(
        "/v1/sweeps/{sweep_id}/artifacts/{candidate_id}",
        response_model=Artifact,
        responses=describe_problems(404),
    )
    async def artifact(
        sweep_id: str,
        candidate_id: str,
        accept_encoding: Annotated[str, Header(include_in_schema=False)] = "",
    ) -> Response:
        """How a confirmed candidate has behaved while it was replayed."""
        body = await control.artifact(sweep_id, candidate_id)
        headers = {"Vary": "Accept-Encoding"}
        if "gzip" in accept_encoding:
            headers["Content-Encoding"] = "gzip"
        else:
            body = await computed(_unpacked, body)
        return Response(body, headers=headers, media_type=JSON_TYPE)


def _unpacked(body: bytes) -> bytes:
    """An artifact as JSON.

    Raises:
        SpicaError: it is none, or far longer than any.
    """
    try:
        with gzip.open(BytesIO(body)) as file:
            text = file.read(_MAX_JSON_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SpicaError(f"the artifact is damaged: {error}") from error
    if len(text) > _MAX_JSON_BYTES:
        raise SpicaError(f"the artifact is longer than {_MAX_JSON_BYTES} bytes")
    return text


def _add_orders(router: APIRouter, control: Control) -> None:
    problems = describe_problems(404, 409)

    @router.post("/v1/sweeps/{sweep_id}/cancel", responses=problems)
    async def cancel(sweep_id: str) -> SweepSummary:
        """End it; what was found is kept, and only `resume` brings it back."""
        return await control.cancel(sweep_id)

    @router.post("/v1/sweeps/{sweep_id}/pause", responses=problems)
    async def pause(sweep_id: str) -> SweepSummary:
        """Stop it until it is resumed."""
        return await control.pause(sweep_id)

    @router.post("/v1/sweeps/{sweep_id}/resume", responses=problems)
    async def resume(sweep_id: str) -> SweepSummary:
        """Queue it again, if it was stopped, has failed or was interrupted."""
        return await control.resume(sweep_id)

    @router.delete("/v1/sweeps/{sweep_id}", status_code=HTTPStatus.NO_CONTENT, responses=problems)
    async def remove(sweep_id: str) -> None:
        """Forget it, if it has ended or was stopped; its folder stays."""
        await control.remove(sweep_id)


def _add_probes(router: APIRouter, control: Control, streams: Streams, metrics: Metrics) -> None:
    async def health() -> Response:
        """Whether the daemon lives."""
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def ready() -> Response:
        """Whether it can work, or what keeps it from it."""
        troubles = await control.troubles()
        if troubles:
            return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(troubles))
        return Response(b'{"status":"ready"}', media_type="application/json")

    async def show_metrics(request: Request) -> Response:
        """Counts, in the text format of Prometheus."""
        try:
            metrics.count_sweeps(await control.counts())
        except SpicaError as error:
            log.warning("http.sweeps_not_counted", why=str(error))
            metrics.count_sweeps(None)
        metrics.streams.set(streams.open)
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"Content-Type": kind})

    # At the root, where probes and Prometheus look, and with the others.
    for prefix, shown in (("", False), ("/v1", True)):
        router.get(f"{prefix}/health", include_in_schema=shown)(health)
        router.get(f"{prefix}/ready", include_in_schema=shown, responses=describe_problems(503))(
            ready
        )
        router.get(f"{prefix}/metrics", include_in_schema=shown)(show_metrics)
