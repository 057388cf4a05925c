"""One function that reads every workload: a name, a file, or a recipe for drawn lengths."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.workloads.formats import CHARACTERS_PER_TOKEN, FORMATS, Format, text_tokens
from vtoken_sdk.workloads.request import Workload, WorkloadRequest
from vtoken_sdk.workloads.samples import NAMED, named_file
from vtoken_sdk.workloads.synthetic import PREFIX, arrivals, draw, parse_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXT_CHUNK = 16
"""Tokens per prefix id of texts, counted by their characters."""


def load_workload(
    spec: str | Path,
    limit: int | None = None,
    scale: float = 1.0,
    seed: int = 0,
    rate: float | None = None,
) -> Workload:
    """Read a workload.

    Args:
        spec: A name of :data:`~vtoken_sdk.workloads.samples.NAMED`, the path of a file (its format
            is told from its content), or ``synthetic:prompt=16000,output=320,requests=64,rate=1``.
        limit: Take the first so many requests only.
        scale: Multiply all lengths by this; texts lose their middle.
        seed: Of what is drawn.
        rate: Requests per second; arrival times are drawn instead of taken from the data.

    Raises:
        ConfigError: If there is no such workload, or a line of the file is malformed.
    """
    _check(limit, scale, rate)
    name = str(spec)
    if name.startswith(PREFIX):
        requests, chunk = draw(parse_recipe(name), seed), parse_recipe(name).shared
        source = "drawn at random"
    else:
        path, source = named_file(name) if name in NAMED else (_file(name), name)
        kind = recognise(path)
        requests = _requests(kind, path, limit)
        chunk = kind.prefix_chunk
        source = source if name in NAMED else f"{path.name} ({kind.name})"
    requests = requests[:limit]
    return _finish(Workload(name, tuple(requests), chunk, source), scale, seed, rate)


def recognise(path: Path) -> Format:
    """The format of a file, told from its first record.

    Raises:
        ConfigError: If it is none of those known.
    """
    known = {kind.suffix for kind in FORMATS}
    if path.suffix not in known:
        raise ConfigError(f"{path}: the name must end in {' or '.join(sorted(known))}")
    candidates = [kind for kind in FORMATS if kind.suffix == path.suffix]
    first = next(candidates[0].rows(path), None)
    if first is None:
        raise ConfigError(f"{path} has no records")
    for kind in candidates:
        if all(field in first.fields for field in kind.fields):
            return kind
    wanted = "; ".join(f"{kind.name}: {', '.join(kind.fields)}" for kind in candidates)
    raise ConfigError(
        f"{path.name}, line {first.line}: the fields {', '.join(first.fields)} are of no known "
        f"format. Known are {wanted}"
    )


def _check(limit: int | None, scale: float, rate: float | None) -> None:
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, got {limit}")
    if not 0 < scale < float("inf"):
        raise ConfigError(f"scale must be above 0, got {scale:g}")
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError(f"rate must be above 0 requests per second, got {rate:g}")


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"there is no workload {name}: give a file, {PREFIX}..., or one of {', '.join(NAMED)}"
        )
    return path


def _requests(kind: Format, path: Path, limit: int | None) -> list[WorkloadRequest]:
    read = (request for row in kind.rows(path) for request in kind.read(row))
    # A trace may be out of order; its first requests are then not its first lines.
    requests = list(read if kind.timed else islice(read, limit))
    if not requests:
        raise ConfigError(f"{path} has no requests")
    requests.sort(key=lambda request: request.arrival_s)
    start = requests[0].arrival_s
    return [replace(r, arrival_s=r.arrival_s - start) for r in requests] if start else requests


def _finish(workload: Workload, scale: float, seed: int, rate: float | None) -> Workload:
    """Scale lengths, draw arrival times, and find out which texts begin alike."""
    requests = list(workload.requests)
    chunk = workload.prefix_chunk
    if scale != 1.0:
        chunk = max(1, round(chunk * scale)) if chunk else 0
        requests = [_scaled(request, scale, chunk) for request in requests]
    if rate is not None:
        times = arrivals(len(requests), rate, seed)
        requests = [replace(r, arrival_s=t) for r, t in zip(requests, times, strict=True)]
    if any(request.text is not None for request in requests):
        requests, chunk = _with_text_prefixes(requests), TEXT_CHUNK
    return replace(workload, requests=tuple(requests), prefix_chunk=chunk)


def _scaled(request: WorkloadRequest, scale: float, chunk: int) -> WorkloadRequest:
    output = max(1, round(request.output_tokens * scale))
    if request.text is not None:
        text = shortened(request.text, scale)
        return replace(request, prompt_tokens=text_tokens(text), output_tokens=output, text=text)
    prompt = max(1, round(request.prompt_tokens * scale))
    if chunk and request.prefix_ids:
        prompt = min(prompt, chunk * len(request.prefix_ids))
    ids = request.prefix_ids[: -(-prompt // chunk)] if chunk else ()
    return replace(request, prompt_tokens=prompt, output_tokens=output, prefix_ids=ids)


def shortened(text: str, scale: float) -> str:
    """A text without its middle: what it is about stands first, what is asked stands last."""
    keep = max(1, round(len(text) * scale))
    if keep >= len(text):
        return text
    tail = min(keep // 2, 200)
    return text[: keep - tail] + (text[-tail:] if tail else "")


def _with_text_prefixes(requests: Iterable[WorkloadRequest]) -> list[WorkloadRequest]:
    """Number the beginnings of texts: equal ones get equal numbers."""
    numbers: dict[tuple[int, str], int] = {}
    done = []
    for request in requests:
        if request.text is None:
            done.append(request)
            continue
        ids, parent = [], -1
        step = TEXT_CHUNK * CHARACTERS_PER_TOKEN
        for start in range(0, len(request.text), step):
            parent = numbers.setdefault((parent, request.text[start : start + step]), len(numbers))
            ids.append(parent)
        chunks = -(-request.prompt_tokens // TEXT_CHUNK)
        done.append(replace(request, prefix_ids=tuple(ids[:chunks])))
    return done
