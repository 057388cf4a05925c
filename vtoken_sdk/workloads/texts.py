"""Fills the lengths of a workload with text, so that a real engine can read its prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.workloads.samples import DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from vtoken_sdk.workloads.request import Workload, WorkloadRequest

BOOK = DATA / "moby_dick.txt"
"""Text that lengths are filled from where the user names none."""

_STRIDE = 7_919
"""A prime, so that chunks begin at different places of a book for as long as it has any."""


def prompt_ids(
    workload: Workload, encode: Callable[[str], Sequence[int]], book: Path = BOOK
) -> list[list[int]]:
    """The prompts of a workload as token ids.

    A request with a text is that text. The others are filled from a book: each prefix id stands for
    one chunk of it, always the same, so what requests share by ids they share by tokens. Where
    there are no ids, each request begins at another place.

    Args:
        workload: The requests.
        encode: The tokeniser.
        book: The text to fill from.

    Returns:
        One list per request; its length is ``prompt_tokens`` exactly where it was filled.

    Raises:
        ConfigError: If the book cannot be read, or is too short.
    """
    filler = _Filler(workload, encode, book)
    return [
        filler.fill(number, request) if request.text is None else list(encode(request.text))
        for number, request in enumerate(workload.requests)
    ]


class _Filler:
    """Cuts prompts from one book."""

    def __init__(
        self, workload: Workload, encode: Callable[[str], Sequence[int]], book: Path
    ) -> None:
        self._chunk = workload.prefix_chunk
        self._tokens: list[int] = []
        if any(request.text is None for request in workload.requests):
            self._tokens = list(encode(_read(book)))
            if len(self._tokens) < 2:  # with one token all chunks are alike
                raise ConfigError(f"{book} is too short to fill prompts from")

    def fill(self, number: int, request: WorkloadRequest) -> list[int]:
        """The prompt of the request at a place of the workload."""
        if not (request.prefix_ids and self._chunk):
            return self._passage(number, request.prompt_tokens)
        filled: list[int] = []
        for prefix in request.prefix_ids:
            filled += self._passage(prefix, self._chunk)
        return filled[: request.prompt_tokens]

    def _passage(self, number: int, length: int) -> list[int]:
        """A stretch of the book, which begins again where it ends."""
        start, size = number * _STRIDE % len(self._tokens), len(self._tokens)
        laps = -(-(start + length) // size)
        return (self._tokens * laps)[start : start + length]


def _read(book: Path) -> str:
    try:
        return book.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {book}: {error}; name another UTF-8 text") from None
