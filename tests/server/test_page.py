"""The page with API keys. Its script runs in node over a few lines of pretended browser, against answers of the real application."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import resources
from typing import Any

import pytest
from starlette.testclient import TestClient

from server.fakes import FakeModel
from taut.server.app import create_app
from taut.server.settings import Settings, digest_key

HTML = resources.files("taut.server").joinpath("page.html").read_text("utf-8")
SCRIPT = re.search(r"<script[^>]*>(.*)</script>", HTML, re.DOTALL)

BROWSER = """
const answers = JSON.parse(process.argv[1]), stored = new Map(JSON.parse(process.argv[2])), typed = JSON.parse(process.argv[3]);
const elements = {}, sent = [];
function element(id) {
  return { id, hidden: ["keys", "stop"].includes(id), value: "", textContent: "", handlers: {}, focus() {}, append() {}, scrollIntoView() {},
    replaceChildren() {}, addEventListener(kind, handler) { this.handlers[kind] = handler; } };
}
globalThis.document = {
  getElementById: id => elements[id] = elements[id] || element(id), querySelectorAll: () => [], createElement: () => element("new"),
};
globalThis.sessionStorage = {
  getItem: name => stored.get(name) ?? null, setItem: (name, value) => stored.set(name, value), removeItem: name => stored.delete(name),
};
globalThis.fetch = async (path, options) => {
  const given = (options.headers || {}).Authorization || "";
  sent.push([path, given]);
  const answer = answers[given] || answers[""];
  return { ok: answer.status === 200, status: answer.status, json: async () => answer.body };
};
const settle = () => new Promise(resolve => setTimeout(resolve, 20));
"""
DRIVER = """
(async () => {
  await settle();
  const states = [[elements.keys.hidden, elements.facts.textContent]];
  for (const key of typed) {
    elements.key.value = key;
    elements.keys.handlers.submit({ preventDefault() {} });
    await settle();
    states.push([elements.keys.hidden, elements.facts.textContent]);
  }
  console.log(JSON.stringify({ states, sent, stored: [...stored], shown: elements.key ? elements.key.value : "" }));
})();
"""


def answers() -> dict[str, Any]:
    """What the application answers to GET /info, by Authorization header."""
    with TestClient(create_app(FakeModel(), Settings(key_digests=(digest_key("right"),)))) as client:
        found = {}
        for value in ("", "Bearer wrong", "Bearer right"):
            response = client.get("/info", headers={"authorization": value} if value else {})
            found[value] = {"status": response.status_code, "body": response.json()}
        return found


def visit(stored: dict[str, str], typed: list[str]) -> dict[str, Any]:
    assert SCRIPT is not None
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    program = BROWSER + SCRIPT[1] + DRIVER
    arguments = [json.dumps(answers()), json.dumps(list(stored.items())), json.dumps(typed)]
    done = subprocess.run([node, "-e", program, "--", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_it_asks_for_a_key_when_the_server_does() -> None:
    seen = visit({}, ["wrong", " right "])
    (first, facts), (second, refused), (third, ready) = seen["states"]
    assert (first, second, third) == (False, False, True), "hidden again only with the right key"
    assert "asks for an API key" in facts
    assert "does not know this API key" in refused
    assert ready.startswith("decoder · int8")
    assert seen["sent"] == [["/info", ""], ["/info", "Bearer wrong"], ["/info", "Bearer right"]]
    assert seen["stored"] == [["taut-api-key", "right"]]
    assert seen["shown"] == "", "the field forgets it"


def test_a_tab_keeps_its_key_and_forgets_a_wrong_one() -> None:
    seen = visit({"taut-api-key": "right"}, [])
    assert seen["states"][0][0] is True
    assert seen["sent"] == [["/info", "Bearer right"]]
    assert visit({"taut-api-key": "wrong"}, [])["stored"] == []


def test_the_key_stays_in_the_tab() -> None:
    assert '<input id="key" type="password" autocomplete="off"' in HTML
    assert "localStorage" not in HTML and "cookie" not in HTML
    assert len(re.findall(r"\bfetch\(", HTML)) == 1, "one place sends requests, with the key"
