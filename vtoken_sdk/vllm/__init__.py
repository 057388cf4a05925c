"""The adapter to vLLM: the only code that imports it, and it imports it only when used."""

from vtoken_sdk.vllm.engine import engine_args

__all__ = ["engine_args"]
