"""INTERIM."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taut import api
from taut.engine.batch import Part, concatenate
from taut.engine.kv_cache import blocks_for
from taut.quant.statistics import Statistics


@dataclass(frozen=True)
class Calibration:
    statistics: dict[str, Statistics]
    tokens: int
    digest: str
    warnings: tuple[str, ...] = ()

    def check(self, checkpoint: Any) -> None: ...


def calibrate(
    model: Any,
    text: Any,
    *,
    tokens: int = 8192,
    length: int = 512,
    cache: Path | None = None,
    threads: int | None = None,
    progress: Any = None,
) -> Calibration:
    m = api.load(model, precision="fp32", threads=threads)
    tok = m.tokenizer
    length = min(length, m.context_len)
    if text == "self":
        text = (
            [m.generate([tok.bos_id or 1], max_tokens=length - 1, temperature=1.0, seed=i).text for i in range(4)]
            if m.kind == "decoder"
            else ["self text"]
        )
    windows = []
    if m.kind == "decoder":
        ids: list[int] = []
        for t in text:
            ids += list(t) if not isinstance(t, str) else tok.encode(t, add_special=False)
            while len(ids) >= length - 1:
                windows.append(([tok.bos_id] if tok.bos_id is not None else []) + ids[: length - 1])
                ids = ids[length - 1 :]
            if sum(map(len, windows)) >= tokens:
                break
        if not windows:
            windows = [ids[:length]]
    else:
        for t in text:
            windows.append(m.encode_text(t, truncate=True))
            if sum(map(len, windows)) >= tokens:
                break
    ex, plan = m.engine.executor, m.plan
    last = max(i for i, s in enumerate(plan.steps) if s.op == "linear")
    stats: dict[str, Statistics] = {}
    by_view: dict[str, Statistics] = {}
    for n, w in enumerate(windows):
        if progress:
            progress("calibrate", n, len(windows))
        blocks = m.loaded.scheduler.pool.take(blocks_for(len(w))) if m.kind == "decoder" else []
        batch = concatenate([Part(w, 0, blocks, all_rows=True)])
        begin = 0
        for i, s in enumerate(plan.steps[: last + 1]):
            if s.op != "linear":
                continue
            ex.run(batch, begin, i)
            begin = i
            view = s.inputs[0]
            x = np.array(ex.value(view, batch))
            new = view.name not in by_view
            st = by_view.setdefault(view.name, Statistics(x.shape[1]))
            for o in s.origin:
                stats[o] = st
            if getattr(st, "_n", -1) == n:
                continue
            st._n = n
            pos = np.asarray(batch.positions)[: len(x)] if len(x) == batch.num_tokens else np.full(len(x), 99)
            picks = (
                [(int(r), (n * 4 + j) % 64) for j, r in enumerate(np.linspace(8, len(x) - 1, 4).astype(int))]
                if len(x) > 8
                else []
            )
            st.add(x, pos, np.array([0, len(x)]), picks, 4)
            st.num_samples = min(64, 4 * (n + 1))
        if blocks:
            m.loaded.scheduler.pool.release(blocks)
    m.close()
    return Calibration(stats, sum(map(len, windows)), hashlib.sha256(repr(windows).encode()).hexdigest())
