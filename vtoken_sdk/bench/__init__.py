"""Runs real vLLM engines and measures what their KV-cache blocks do."""
