"""The checks, one module per subject; they run in the order in which these modules are imported."""

from vtoken_sdk.testing.checks import contract  # isort: skip
from vtoken_sdk.testing.checks import answers  # isort: skip
from vtoken_sdk.testing.checks import signals  # isort: skip
from vtoken_sdk.testing.checks import sameness  # isort: skip
from vtoken_sdk.testing.checks import edges  # isort: skip
from vtoken_sdk.testing.checks import devices  # isort: skip
from vtoken_sdk.testing.checks import invariants  # isort: skip
from vtoken_sdk.testing.checks import speed  # isort: skip
from vtoken_sdk.testing.checks import real_vllm  # isort: skip

__all__ = [
    "answers",
    "contract",
    "devices",
    "edges",
    "invariants",
    "real_vllm",
    "sameness",
    "signals",
    "speed",
]
