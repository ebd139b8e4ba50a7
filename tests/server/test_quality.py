"""GET /v1/models/{id}/quality: the receipt of the served model, or a word on how to get one."""

from __future__ import annotations

from typing import Any

from server.fakes import FakeModel
from server.support import client_of, is_openai_error
from taut.server.settings import Settings, digest_key

RECEIPT = {"version": 1, "made_from": {"ref": "/private/model", "name": "model"}, "quality": {"kl": 0.0071, "top1": 0.955}}
SHOWN = {**RECEIPT, "made_from": {"name": "model"}}


def model(receipt: Any = RECEIPT) -> FakeModel:
    made = FakeModel()
    made.receipt = receipt  # type: ignore[attr-defined]
    return made


def test_the_receipt() -> None:
    with client_of(model(), Settings(served_name="org/name")) as client:
        for name in ("org/name", "fake"):
            response = client.get(f"/v1/models/{name}/quality")
            assert (response.status_code, response.json()) == (200, SHOWN), "clients are not told where files lie"
        assert client.get("/v1/models/org/name").json()["object"] == "model", "the card is where it was"


def test_a_model_without_one() -> None:
    for fake in (FakeModel(), model(None)):
        with client_of(fake) as client:
            response = client.get("/v1/models/fake/quality")
            assert response.status_code == 404
            assert is_openai_error(response.json())
            error = response.json()["error"]
            assert (error["code"], error["type"], error["param"]) == ("no_receipt", "not_found_error", "model")
            assert "taut quantize MODEL OUT" in error["message"] and "taut eval" in error["message"]


def test_another_model() -> None:
    with client_of(model()) as client:
        response = client.get("/v1/models/other/quality")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
        assert client.post("/v1/models/fake/quality", json={}).status_code == 405


def test_it_needs_the_key_like_the_rest() -> None:
    with client_of(model(), Settings(key_digests=(digest_key("k"),))) as client:
        assert client.get("/v1/models/fake/quality").status_code == 401
        assert client.get("/v1/models/fake/quality", headers={"authorization": "Bearer k"}).json() == SHOWN
