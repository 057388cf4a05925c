"""Requests in groups that share the beginning of their prompts."""

from __future__ import annotations

from vtoken_sdk.workloads import Workload, WorkloadRequest

CHUNK = 32
"""Tokens a prefix id stands for; prefixes are whole chunks."""


def grouped(requests: int, degree: int, prompt: int, shared: int, output: int) -> Workload:
    """Requests of equal lengths; each ``degree`` of them in a row begin with the same tokens.

    Args:
        requests: How many.
        degree: Requests of a group; 1 shares nothing.
        prompt: Tokens of a prompt.
        shared: Tokens a group shares, whole chunks of :data:`CHUNK`.
        output: Tokens generated.
    """
    chunks, common = -(-prompt // CHUNK), shared // CHUNK
    return Workload(
        f"groups of {degree}",
        tuple(
            WorkloadRequest(0.0, prompt, output, _ids(number, number // degree, chunks, common))
            for number in range(requests)
        ),
        CHUNK,
    )


def _ids(number: int, group: int, chunks: int, common: int) -> tuple[int, ...]:
    """Ids of a request: the common ones are its group's, the others its own."""
    own = range(2 * number * chunks, 2 * number * chunks + chunks)
    theirs = range((2 * group + 1) * chunks, (2 * group + 1) * chunks + chunks)
    return (*theirs[:common], *own[common:])
