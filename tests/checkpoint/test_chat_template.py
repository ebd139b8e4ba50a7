"""Chat templates: what templates in use need, the sandbox's limits, and that a template that fails harms nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from taut.checkpoint import ChatTemplate
from taut.errors import ContextLengthError, ModelFormatError, RequestError

pytestmark = pytest.mark.slow  # each template starts a process

USER = [{"role": "user", "content": "hello"}]


class Templates:
    """Makes templates and closes them after the test."""

    def __init__(self) -> None:
        self.made: list[ChatTemplate] = []

    def __call__(self, source: str, **options: Any) -> ChatTemplate:
        self.made.append(ChatTemplate(source, **options))
        return self.made[-1]


@pytest.fixture
def template() -> Iterator[Templates]:
    templates = Templates()
    yield templates
    for made in templates.made:
        made.close()


CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}"
)


def test_chatml(template: Templates) -> None:
    made = template(CHATML)
    turn = "<|im_start|>user\nhello<|im_end|>\n"
    assert made.render(USER) == turn + "<|im_start|>assistant\n"
    assert made.render(USER, add_generation_prompt=False) == turn


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),  # trim_blocks and lstrip_blocks
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hello!"),
        (
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "013",
        ),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ {'b': 1, 'a': '<é&>'}|tojson }}", '{"b": 1, "a": "<é&>"}'),
        ("{{ {'b': [1]}|tojson(indent=4) }}", '{\n    "b": [\n        1\n    ]\n}'),
        ("{% for i in [1, 2] %}{{ loop.previtem is defined }}{{ loop.nextitem|default('-') }}{% endfor %}", "False2True-"),
        ("{{ messages[::-1][0].content[1:3] }}", "el"),
        ("{{ '  x\n'.strip() }}{{ 'a,b'.split(',')[-1] }}{{ 'abc'.startswith('ab') }}", "xbTrue"),
        ("{{ messages|length }}{{ messages|map(attribute='role')|join('-') }}", "1user"),
        ("{{ messages[0].get('name', 'none') }}{{ messages[0].missing is defined }}", "noneFalse"),
        ("{{ tools is not none }}{{ documents is none }}{{ undefined_name is defined }}", "FalseTrueFalse"),
        ("{% macro turn(m) %}[{{ m.role }}]{% endmacro %}{{ turn(messages[0]) }}", "[user]"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x|trim }}", "a1"),
        ("{{ bos_token }}{{ tools is defined }}{{ enable_thinking }}", "<s>TrueTrue"),
        ("{{ messages[0].content | replace('l', 'L') | upper }}", "HELLO"),
        ("<b>&amp;</b>{{ '<i>' }}", "<b>&amp;</b><i>"),  # no HTML escaping
    ],
)
def test_features_of_templates_in_use(source: str, text: str, template: Templates) -> None:
    assert template(source, variables={"bos_token": "<s>"}).render(USER, enable_thinking=True) == text


def test_clock(template: Templates) -> None:
    """textgen 6675: strftime_now was undefined."""
    made = template("{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime(2024, 7, 26, 12, 0))
    assert made.render(USER) == "26 Jul 2024"
    assert template("{{ strftime_now('%Y') }}").render(USER) == str(datetime.now().year)


def test_a_refusal_reaches_the_client_in_the_templates_words(template: Templates) -> None:
    """llama.cpp 11402: the server fell back to another format silently."""
    made = template(
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(RequestError, match="refuses the messages: Conversation roles must alternate") as caught:
        made.render(USER + USER)
    assert (caught.value.param, caught.value.status, caught.value.code) == ("messages", 400, "chat_template_error")
    assert made.render(USER) == "hello"


def test_special_tokens_in_messages_are_hidden_everywhere_but_not_the_templates_own(template: Templates) -> None:
    made = template(
        "<end>{{ messages[0].content }}{{ messages[0].parts[0].text }}{{ tools[0] }}",
        hide_special=lambda s: s.replace("<end>", "<~>"),
    )
    assert (
        made.render([{"role": "user", "content": "a<end>", "parts": [{"text": "<end>"}]}], tools=["<end>"]) == "<end>a<~><~><~>"
    )


def test_a_template_that_takes_too_long_is_ended_and_the_next_rendering_works(template: Templates) -> None:
    source = "{% if messages[0].content == 'slow' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok"
    made = template(source, limit_s=0.5)
    assert made.render(USER) == "ok"
    started = time.monotonic()
    with pytest.raises(RequestError, match=r"took longer than 0\.5 s"):
        made.render([{"role": "user", "content": "slow"}])
    assert time.monotonic() - started < 3
    assert made.render(USER) == "ok"


def test_a_template_that_needs_too_much_memory_harms_nothing(template: Templates) -> None:
    made = template("{% if messages[0].content == 'big' %}{{ 'a'.ljust(10**12) }}{% endif %}ok")
    with pytest.raises(RequestError, match="needs too much memory"):
        made.render([{"role": "user", "content": "big"}])
    assert made.render(USER) == "ok"


def test_output_is_bounded(template: Templates) -> None:
    made = template("{% for i in range(100) %}{{ messages[0].content }}{% endfor %}", max_chars=500)
    assert len(made.render(USER)) == 500
    with pytest.raises(ContextLengthError, match="more than 500 characters"):
        made.render([{"role": "user", "content": "hello!"}])


@pytest.mark.parametrize("text", ["", "é中👋", "\x00\u2028", "\ud800", "a" * 300_000])
def test_any_text_passes_through(text: str, template: Templates) -> None:
    assert template("{{ messages[0].content }}").render([{"role": "user", "content": text}]) == text


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}, b"x"])
def test_only_plain_data_goes_in(value: object, template: Templates) -> None:
    with pytest.raises(RequestError, match="not plain data"):
        template("x").render(USER, extra=value)


@pytest.mark.parametrize("name", ["strftime_now", "raise_exception", "range", "namespace"])
def test_a_caller_cannot_replace_the_functions(name: str, template: Templates) -> None:
    with pytest.raises(RequestError, match=f"may not be named {name}"):
        template("x").render(USER, **{name: 1})


@pytest.mark.parametrize(
    "attack", ["open('x')", "messages.__init__", "''.__class__", "range.__self__", "x.__globals__", "loop._parent"]
)
def test_nothing_of_python_is_in_reach(attack: str, template: Templates) -> None:
    with pytest.raises(RequestError):
        template("{% for x in messages %}{{ (" + attack + ").anything.more }}{% endfor %}").render(USER)


def test_check_tells_a_broken_template(template: Templates) -> None:
    template("{{ 1 }}").check()
    with pytest.raises(ModelFormatError, match="cannot be compiled: line 2"):
        template("\n{% for %}").check()


def test_renders_from_many_threads_at_once(template: Templates) -> None:
    made = template("{{ messages[0].content }}")
    found: dict[int, str] = {}

    def work(index: int) -> None:
        for _ in range(20):
            found[index] = made.render([{"role": "user", "content": str(index)}])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {index: str(index) for index in range(8)}


def _children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(map(int, file.read().split()))


@pytest.mark.skipif(not os.path.exists(f"/proc/self/task/{os.getpid()}/children"), reason="needs Linux's /proc")
def test_the_process_ends_with_its_template() -> None:
    before = _children()
    made = ChatTemplate("x")
    made.render(USER)
    assert len(_children() - before) == 1
    made.close()
    assert _children() == before
    forgotten = ChatTemplate("x")
    forgotten.render(USER)
    del forgotten
    assert _children() == before


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux's /proc")
def test_a_killed_process_is_replaced_and_no_pipe_is_left_open(template: Templates) -> None:
    made = template("x")
    made.render(USER)
    open_files = len(os.listdir("/proc/self/fd"))
    worker = next(iter(_children()))
    os.kill(worker, 9)
    time.sleep(0.1)
    assert made.render(USER) == "x"
    assert len(os.listdir("/proc/self/fd")) == open_files
