"""The loop on a fake engine: one terminal event each, texts that depend on nothing but the request, nothing leaked."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from scheduler.fakes import fake_loop, next_token
from taut.errors import ContextLengthError, MemoryBudgetError, OverloadedError, RequestError
from taut.scheduler.loop import Loop
from taut.scheduler.request import EmbedRequest, FinishedEvent, GenerateRequest, SamplingParams, TextEvent


def request(name: str, prompt: list[int], max_tokens: int = 8, seed: int = 0, **options: object) -> GenerateRequest:
    return GenerateRequest(name, tuple(prompt), max_tokens, SamplingParams(seed=seed), **options)  # type: ignore[arg-type]


def expected(prompt: list[int], count: int, seed: int = 0) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, seed))
    return tokens[len(prompt) :]


def drain(loop: Loop, most: int = 10_000) -> tuple[dict[str, list[int]], dict[str, FinishedEvent]]:
    tokens: dict[str, list[int]] = {}
    finished: dict[str, FinishedEvent] = {}
    for _ in range(most):
        if not loop.has_work:
            break
        for event in loop.step():
            if isinstance(event, TextEvent):
                tokens.setdefault(event.request_id, []).extend(event.token_ids)
            else:
                assert event.request_id not in finished, "two terminal events"
                finished[event.request_id] = event
        loop.check_integrity()
    assert not loop.has_work, "the loop does not come to an end"
    return tokens, finished


def test_one_request() -> None:
    loop, _ = fake_loop()
    loop.submit(request("a", [5, 6, 7]))
    tokens, finished = drain(loop)
    assert tokens["a"] == expected([5, 6, 7], 8)
    assert finished["a"].reason == "length" and finished["a"].usage.completion_tokens == 8
    assert loop.stats().kv_blocks_used == 0


@pytest.mark.parametrize("chunk", [1, 7, 32, 33, 256])
def test_chunks_and_neighbours_do_not_matter(chunk: int) -> None:
    rng = random.Random(chunk)
    prompts = {str(i): [rng.randrange(2, 1000) for _ in range(rng.randrange(1, 300))] for i in range(8)}
    loop, _ = fake_loop(256, chunk_tokens=chunk, step_tokens=max(chunk, 64))
    for name, prompt in prompts.items():
        loop.submit(request(name, prompt))
    tokens, _ = drain(loop)
    assert tokens == {name: expected(prompt, 8) for name, prompt in prompts.items()}


def test_step_budget_holds() -> None:
    loop, engine = fake_loop(512, step_tokens=100, chunk_tokens=64)
    for i in range(20):
        loop.submit(request(str(i), [3] * 150))
    drain(loop)
    assert engine.largest_step <= 100 + 16


def test_prefix_is_reused() -> None:
    loop, _engine = fake_loop()
    first = list(range(2, 102))
    loop.submit(request("a", first))
    answer = drain(loop)[0]["a"]
    follow = [*first, *answer, 7, 8, 9]
    loop.submit(request("b", follow))
    tokens, finished = drain(loop)
    assert finished["b"].usage.cached_tokens == 96
    assert tokens["b"] == expected(follow, 8)
    loop.submit(request("c", first[:64]))
    assert drain(loop)[1]["c"].usage.cached_tokens == 32  # the last token's block is computed: a row is needed


def test_reuse_can_be_off() -> None:
    loop, _ = fake_loop(reuse=False)
    for name in "ab":
        loop.submit(request(name, [3] * 100))
        assert drain(loop)[1][name].usage.cached_tokens == 0


def test_preemption_keeps_the_text() -> None:
    """A cache for two sequences, eight long requests: everyone ends, with the text of a run alone (bug report J3)."""
    loop, _ = fake_loop(num_blocks=8, running=8)
    prompts = {str(i): [i + 2] * 60 for i in range(8)}
    for name, prompt in prompts.items():
        loop.submit(request(name, prompt, max_tokens=120))
    tokens, finished = drain(loop)
    assert loop.stats().preemptions > 0
    assert tokens == {name: expected(prompt, 120) for name, prompt in prompts.items()}
    assert {event.usage.completion_tokens for event in finished.values()} == {120}


def test_random_life() -> None:
    """Random arrivals, cancels and failures over many seeds; the invariants are checked after every step."""
    for seed in range(60):
        rng = random.Random(seed)
        loop, engine = fake_loop(
            num_blocks=rng.randrange(12, 40), running=rng.randrange(1, 9), chunk_tokens=rng.choice([5, 32, 100])
        )
        engine.nan, engine.poison = 500, 501
        accepted: dict[str, GenerateRequest] = {}
        ended: Counter[str] = Counter()
        texts: dict[str, list[int]] = {}
        reasons: dict[str, str] = {}
        for round_ in range(80):
            if rng.random() < 0.4 and round_ < 60:
                shared = [9] * rng.choice([0, 32, 64, 70])
                prompt = shared + [rng.randrange(2, 502) for _ in range(rng.randrange(1, 90))]
                new = request(f"{round_}", prompt, rng.randrange(1, 40), seed)
                try:
                    loop.submit(new)
                    accepted[new.request_id] = new
                except MemoryBudgetError:
                    pass
            if rng.random() < 0.1 and accepted:
                loop.cancel(rng.choice(list(accepted)))
            for event in loop.step():
                if isinstance(event, FinishedEvent):
                    ended[event.request_id] += 1
                    reasons[event.request_id] = event.reason
                else:
                    texts.setdefault(event.request_id, []).extend(event.token_ids)
            loop.check_integrity()
        tokens, finished = drain(loop)
        for name, event in finished.items():
            ended[name] += 1
            reasons[name] = event.reason
        for name, more in tokens.items():
            texts.setdefault(name, []).extend(more)
        assert ended == Counter(dict.fromkeys(accepted, 1))
        for name, new in accepted.items():
            whole = expected(list(new.prompt), new.max_tokens, seed)
            got = texts.get(name, [])
            assert got == whole[: len(got)], f"seed {seed}: request {name} got another text than alone"
            assert reasons[name] != "length" or len(got) == new.max_tokens
            hurt = {500, 501} & {*new.prompt, *whole}
            assert reasons[name] != "error" or hurt
        assert loop.stats().kv_blocks_used == 0


def test_a_bad_request_fails_alone() -> None:
    loop, engine = fake_loop()
    engine.poison = 77
    loop.submit(request("good", [5, 6]))
    loop.submit(request("bad", [77, 6]))
    loop.submit(request("also good", [8, 9]))
    tokens, finished = drain(loop)
    assert finished["bad"].reason == "error" and isinstance(finished["bad"].error, RuntimeError)
    assert tokens["good"] == expected([5, 6], 8) and tokens["also good"] == expected([8, 9], 8)


def test_stop_token_and_ignore_eos() -> None:
    end = expected([5], 3)[2]
    loop, _ = fake_loop(end_ids=frozenset({end}))
    loop.submit(request("a", [5]))
    loop.submit(request("b", [5], ignore_eos=True))
    _, finished = drain(loop)
    assert (finished["a"].reason, finished["a"].usage.completion_tokens) == ("stop", 3)
    assert (finished["b"].reason, finished["b"].usage.completion_tokens) == ("length", 8)


def test_context_limit_ends_with_length() -> None:
    loop, _ = fake_loop(context_len=40)
    loop.submit(request("a", [5] * 36, max_tokens=1000, ignore_eos=True))
    tokens, finished = drain(loop)
    assert finished["a"].reason == "length" and len(tokens["a"]) == 4


@pytest.mark.parametrize("length", [40, 41, 400])
def test_too_long_is_refused_at_once(length: int) -> None:
    loop, _ = fake_loop(context_len=40)
    with pytest.raises(ContextLengthError, match=f"has {length} tokens; at most 39 and an answer fit"):
        loop.submit(request("a", [5] * length))
    assert not loop.has_work


def test_larger_than_the_cache_is_refused() -> None:
    loop, _ = fake_loop(num_blocks=2)
    with pytest.raises(MemoryBudgetError, match="holds 64"):
        loop.submit(request("a", [5] * 60, max_tokens=10))


def test_queue_is_bounded() -> None:
    loop, _ = fake_loop(waiting=3, running=1)
    for i in range(3):
        loop.submit(request(str(i), [5]))
    with pytest.raises(OverloadedError):
        loop.submit(request("x", [5]))
    assert set(drain(loop)[1]) == {"0", "1", "2"}


def test_larger_than_the_queue_is_refused() -> None:
    loop, _ = fake_loop(waiting_tokens=50)
    for new in (request("a", [5] * 51), EmbedRequest("b", (5,) * 51)):
        with pytest.raises(RequestError, match="at most 50"):
            loop.submit(new)
    loop.submit(request("c", [5] * 50))
    with pytest.raises(OverloadedError):
        loop.submit(request("d", [5]))
    assert (loop.max_queued, loop.max_queued_tokens) == (1024, 50)
    assert set(drain(loop)[1]) == {"c"}


@pytest.mark.parametrize("prompt", [[], [-1], [1000], [2**63]])
def test_bad_ids(prompt: list[int]) -> None:
    loop, _ = fake_loop()
    with pytest.raises(RequestError):
        loop.submit(request("a", prompt))
    assert not loop.has_work


def test_same_id_twice() -> None:
    loop, _ = fake_loop()
    loop.submit(request("a", [5]))
    with pytest.raises(RequestError, match="still running"):
        loop.submit(request("a", [6]))
    drain(loop)
    loop.submit(request("a", [6]))
    drain(loop)


def test_cancel_everywhere() -> None:
    loop, _ = fake_loop(running=1)
    loop.submit(request("running", [5] * 500))
    loop.submit(request("waiting", [6]))
    loop.submit(EmbedRequest("embed", (7,)))
    loop.step()
    for name in ("running", "waiting", "embed", "never seen", "running"):
        loop.cancel(name)
    loop.check_integrity()
    assert {event.reason for event in drain(loop)[1].values()} == {"cancelled"}
    assert loop.stats().kv_blocks_used == 0


def test_embeds_are_batched_by_tokens() -> None:
    loop, _ = fake_loop(step_tokens=10)
    for i in range(6):
        loop.submit(EmbedRequest(str(i), (i,) * 4))
    assert len(loop.step()) == 2
    _, finished = drain(loop)
    assert [float(finished[str(i)].embedding[0]) for i in range(2, 6)] == [4.0 * i for i in range(2, 6)]  # type: ignore[index]
