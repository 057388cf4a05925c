"""Benches that put a workload on real engines and compare variants and policies."""
