"""/livez, /readyz and /health, truthful and without waiting for the engine: they read its last heartbeat.

Alive: the engine thread runs and no step has hung. Ready: alive, and not shutting down. An idle or a busy engine is both.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from taut.server.answer import Services


class Health:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route("/livez", self.live, methods=["GET"]),
            Route("/readyz", self.ready, methods=["GET"]),
            Route("/health", self.ready, methods=["GET"]),
        ]

    async def live(self, request: Request) -> JSONResponse:
        return _report(self._troubles())

    async def ready(self, request: Request) -> JSONResponse:
        draining = ["draining"] if self._services.engine.is_draining else []
        return _report(self._troubles() + draining)

    def _troubles(self) -> list[str]:
        engine = self._services.engine
        if not engine.is_alive:
            return ["engine_stopped"]
        return ["engine_stalled"] if engine.is_stalled(self._services.settings.timing.stall_s) else []


def _report(reasons: list[str]) -> JSONResponse:
    if not reasons:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reasons": reasons}, 503, {"retry-after": "1"})
