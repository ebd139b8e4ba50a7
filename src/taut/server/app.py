"""Puts the server together: routes, middleware, and the engine thread's life around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

import taut
from taut.errors import TautError
from taut.server.answer import Services
from taut.server.bridge import EngineThread
from taut.server.failures import failure_of
from taut.server.health import Health
from taut.server.metrics import Metrics
from taut.server.middleware import Auth, Context
from taut.server.openai import OpenAI
from taut.server.page import Page
from taut.server.protocols import ModelLike
from taut.server.served import Served
from taut.server.settings import Settings


def create_app(model: ModelLike, settings: Settings | None = None) -> Starlette:
    """The ASGI application that serves `model`. Its lifespan starts and stops the engine's thread.

    `app.state.services` holds the parts.
    """
    settings = settings or Settings()
    engine = EngineThread(model.loop, max_open=settings.max_open_requests)
    services = Services(settings, Served(model, settings), engine, Metrics(engine))
    operator = [Route("/info", _info, methods=["GET"]), Route("/metrics", _metrics, methods=["GET"])]
    routes: list[BaseRoute] = [*OpenAI(services).routes(), *Health(services).routes(), *operator, *Page().routes()]
    labels = frozenset(route.path.replace("{name:path}", "{id}") for route in routes if isinstance(route, Route))
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Context, services.metrics, settings.limits, labels),
            Middleware(Auth, settings.key_digests),
        ],
        exception_handlers={TautError: _on_error, HTTPException: _on_error},
        lifespan=_lifespan,
    )
    app.router.redirect_slashes = False
    app.state.services = services
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    engine: EngineThread = app.state.services.engine
    engine.start()
    try:
        yield
    finally:
        await engine.stop()


async def _on_error(request: Request, error: Exception) -> Response:
    failure = failure_of(error)
    request.app.state.services.metrics.count_error(failure)
    return failure.response()


async def _metrics(request: Request) -> Response:
    return Response(request.app.state.services.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def _info(request: Request) -> JSONResponse:
    """What is served and within which limits."""
    services: Services = request.app.state.services
    model, limits = services.served.model, services.settings.limits
    stats = services.engine.heartbeat.stats
    return JSONResponse(
        {
            "version": taut.__version__,
            "model": services.served.name,
            "kind": model.kind,
            "context_len": services.served.context_len,
            "embedding_dim": model.embedding_dim,
            "limits": {
                "n": limits.max_n,
                "texts": limits.max_texts,
                "sequences": model.loop.max_queued,
                "body_bytes": limits.body_bytes,
            },
            "details": services.served.details,
            "guards": dict(stats.guards) if stats is not None else {},
        }
    )
