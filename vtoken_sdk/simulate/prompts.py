"""Prompts of which only the length and the shared beginnings count; 16K tokens cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PART = 6
"""Bytes for either half of a block's hash."""


class Length:
    """Stands in for a list of token ids, all of them 0: vLLM's scheduler only asks how many."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, item: int | slice) -> int | list[int]:
        if isinstance(item, slice):
            return [0] * len(range(*item.indices(self.count)))
        if not -self.count <= item < self.count:
            raise IndexError(item)
        return 0

    def __iter__(self) -> Iterator[int]:
        return iter([0] * self.count)

    def append(self, _token: int) -> None:
        """One token more."""
        self.count += 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Some tokens more."""
        self.count += len(tokens)

    def copy(self) -> Length:
        """Another one of the same length."""
        return Length(self.count)


class PrefixHasher:
    """Hashes blocks by the prefix ids of their request, as vLLM hashes them by their tokens.

    Two blocks have the same hash if they stand at the same place, and all chunks of the prompt up
    to the end of the block have the same ids. Blocks with generated tokens in them are nobody
    else's.

    Args:
        block_size: Tokens per block.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._paths: dict[tuple[int, Any], int] = {}

    def of(
        self, req_id: str, num_prompt_tokens: int, prefix_ids: Sequence[int], chunk: int
    ) -> Callable[[Any], list[bytes]]:
        """What vLLM calls for a request whenever tokens came to it.

        Args:
            req_id: The request.
            num_prompt_tokens: Length of its prompt.
            prefix_ids: One number per ``chunk`` tokens of its prompt, or none.
            chunk: Tokens per number.
        """
        prompt = self._prompt(req_id, num_prompt_tokens, prefix_ids, chunk)
        size, own = self._size, self._path(-1, req_id)

        def hasher(request: Any) -> list[bytes]:
            have, full = len(request.block_hashes), request.num_tokens // size
            if have >= full:
                return []
            new = prompt[have:full]
            return new + [_hash(own, at) for at in range(have + len(new), full)]

        return hasher

    def _prompt(
        self, req_id: str, num_prompt_tokens: int, prefix_ids: Sequence[int], chunk: int
    ) -> list[bytes]:
        full = num_prompt_tokens // self._size
        if not (prefix_ids and chunk):
            own = self._path(-1, req_id)
            return [_hash(own, at) for at in range(full)]
        paths, path = [], -1
        for prefix in prefix_ids:
            path = self._path(path, prefix)
            paths.append(path)
        size, last = self._size, len(paths) - 1
        return [_hash(paths[min((at * size + size - 1) // chunk, last)], at) for at in range(full)]

    def _path(self, parent: int, step: Any) -> int:
        return self._paths.setdefault((parent, step), len(self._paths))


def _hash(path: int, at: int) -> bytes:
    return path.to_bytes(_PART, "little") + at.to_bytes(_PART, "little")
