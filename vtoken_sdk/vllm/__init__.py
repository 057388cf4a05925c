"""The adapter to vLLM: the only code that imports it, and it imports it only when used."""

from vtoken_sdk.vllm.engine import engine_args
from vtoken_sdk.vllm.observe import engine_metrics

__all__ = ["engine_args", "engine_metrics"]
