"""Measurements: real vLLM engines (``run``), and the parts of the runtime on their own."""
