"""The HTTP surface: bodies, headers, routes, keys, health, the page. What a hostile or clumsy client meets."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from server.fakes import FakeLoop, FakeModel
from server.support import CHAT, client_of, is_openai_error, user, wait_until
from taut.server.app import create_app
from taut.server.failures import failure_of, printable
from taut.server.settings import Limits, Settings, digest_key, split_keys

JSON = {"content-type": "application/json"}
KEYED = Settings(key_digests=(digest_key("first"), digest_key("second")))


@pytest.fixture(scope="module")
def client() -> Any:
    with client_of() as client:
        yield client


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"messages": \xed\xa0\x80}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"a":' * 33 + b"1" + b"}" * 33,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000,
    ],
    ids=range(15),
)
def test_bodies_that_are_not_sound_json(client: TestClient, body: bytes) -> None:
    response = client.post(CHAT, content=body, headers=JSON)
    assert response.status_code == 400
    assert is_openai_error(response.json())
    assert response.json()["error"]["code"] == "invalid_json"


def test_nesting_within_the_limit(client: TestClient) -> None:
    deep: Any = 1
    for _ in range(30):
        deep = {"a": deep}
    assert client.post(CHAT, json={"messages": user(), "metadata": deep}).status_code == 200


def test_content_types(client: TestClient) -> None:
    body = json.dumps({"messages": user()})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        response = client.post(CHAT, content=body, headers={"content-type": kind})
        assert response.status_code == 415
        assert is_openai_error(response.json())
    assert client.post(CHAT, content=body, headers={"content-type": "Application/JSON; charset=utf-8"}).status_code == 200
    assert client.post(CHAT, content=body, headers={**JSON, "content-encoding": "gzip"}).status_code == 415


def test_body_limit_counts_while_reading() -> None:
    with client_of(settings=Settings(limits=Limits(body_bytes=1000))) as client:
        declared = client.post(CHAT, content=b"x" * 1001, headers=JSON)
        chunked = client.post(CHAT, content=iter([b"x" * 600] * 2), headers=JSON)
        for response in (declared, chunked):
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "request_too_large"
        assert client.post(CHAT, json={"messages": user()}).status_code == 200


def test_header_limits(client: TestClient) -> None:
    for headers in ({"x-big": "y" * 17_000}, {f"x-{i}": "1" for i in range(101)}):
        response = client.get("/livez", headers=headers)
        assert response.status_code == 431
        assert is_openai_error(response.json())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/", 405),
        ("GET", "/../etc/passwd", 404),
    ],
)
def test_unknown_routes_and_methods(client: TestClient, method: str, path: str, status: int) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert is_openai_error(response.json())
    assert "x-request-id" in response.headers


def test_a_bug_in_a_route_is_a_plain_500(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret detail at /some/path")

    monkeypatch.setattr("taut.server.openai.parse", broken)
    response = client.post(CHAT, json={"messages": user()})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text


def test_messages_hold_no_control_characters(client: TestClient) -> None:
    response = client.post(CHAT, json={"model": "\x1b[31m\r\n\u202e\x00", "messages": user()})
    assert response.status_code == 404
    assert all(character.isprintable() for character in response.json()["error"]["message"])
    assert printable("a\x1b\n\ud800é") == "a\\x1b\\n\\ud800é"
    assert len(printable("x" * 10**6)) < 1100
    assert failure_of(OSError("/etc/shadow")).body()["error"]["message"].startswith("internal error")


def concrete(path: str) -> str:
    return path.replace("{name:path}", "fake")


def test_every_route_is_closed_without_a_key_except_health() -> None:
    app = create_app(FakeModel(), KEYED)
    paths = [concrete(route.path) for route in app.routes if isinstance(route, Route)]
    assert len(paths) >= 10
    open_paths = set()
    with TestClient(app) as client:
        for path in [*paths, "/nowhere", "/livez/", "//livez", "/LIVEZ", "/health/../v1/models"]:
            for method in ("GET", "POST"):
                for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer "}, {"authorization": "x"}):
                    if client.request(method, path, headers=headers).status_code != 401:
                        open_paths.add(path)
    assert open_paths == {"/livez", "/readyz", "/health"}


def test_keys() -> None:
    with client_of(settings=KEYED) as client:
        basic = base64.b64encode(b"me:second").decode()
        for value in ("Bearer first", "bearer second", f"Basic {basic}"):
            assert client.get("/v1/models", headers={"authorization": value}).status_code == 200
        for value in ("first", "Bearer firs", "Bearer first ", "Bearer first,second", "Basic !!", "Basic Og==", "Bearer \xff"):
            status = client.get("/v1/models", headers={"authorization": value.encode("latin-1")}).status_code
            assert status == (200 if value.strip() == "Bearer first" else 401), value
        response = client.post(CHAT, content=b"\xff not json", headers=JSON)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert response.json()["error"]["type"] == "authentication_error"
        assert client.get("/").headers["www-authenticate"].startswith("Basic"), "a browser asks its user"


def test_keys_are_not_kept_or_shown() -> None:
    assert "first" not in repr(KEYED)
    assert split_keys("# comment\n a \n\nb,c\n") == ("a", "b", "c")


def test_health_of_a_healthy_server(client: TestClient) -> None:
    for path in ("/livez", "/readyz", "/health"):
        response = client.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_info(client: TestClient) -> None:
    info = client.get("/info").json()
    assert (info["model"], info["kind"], info["context_len"]) == ("fake", "decoder", 256)
    assert info["details"]["isa"] == "scalar"


def test_guards_are_counted_by_kind() -> None:
    model = FakeModel(FakeLoop(guards={"clamped": 3, "nonfinite": 1}))
    with client_of(model) as client:
        client.post("/v1/completions", json={"prompt": "a"})
        wait_until(lambda: client.get("/info").json()["guards"] == {"clamped": 3, "nonfinite": 1})
        kinds = {"clamped": 3, "scores": 0, "fallback": 0, "nonfinite": 1}
        text = client.get("/metrics").text
        assert all(f'taut_guard_total{{kind="{kind}"}} {float(count)}' in text for kind, count in kinds.items())


def test_page_is_self_contained(client: TestClient) -> None:
    response = client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    nonce = policy.split("script-src 'nonce-")[1].split("'")[0]
    assert f'<script nonce="{nonce}">' in response.text
    assert "http://" not in response.text
    assert "https://" not in response.text
    assert client.get("/").headers["content-security-policy"] != policy, "a fresh nonce each time"
