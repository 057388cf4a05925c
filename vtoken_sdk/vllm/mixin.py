"""What is mixed into classes of vLLM extends; to type checkers anything, as vLLM is untyped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Mixin = Any
else:
    Mixin = object
