"""vLLM's own scheduler and block pool without a model: memory at sizes a CPU cannot compute."""
