"""The paper's figures, as it reports them; the only numbers of a page that no result holds.

"vToken: Token-Level Virtualization for Reclaimable KV Caches" (arXiv, 2026): vLLM 0.18 on one H100
with 80 GB, models Mistral-7B, Llama-3.1-8B and Qwen2.5-14B, workloads ShareGPT and LongBench. They
stand beside ours to compare the kind of effect, not the numbers: model, machine and load differ.
"""

from __future__ import annotations

SOURCE = (
    "vToken: Token-Level Virtualization for Reclaimable KV Caches (arXiv, 2026); vLLM 0.18, one "
    "H100 80 GB, Mistral-7B, Llama-3.1-8B and Qwen2.5-14B, ShareGPT and LongBench"
)

OTHER = (
    "Its models, machine and loads are other ones: the kind of effect can be compared, the numbers "
    "cannot."
)

CAPACITY = "Native 5, Naive 5, vToken 8 (Llama-3.1-8B, 5,427 blocks, 16K context)"
CAPACITY_HALF = "11 → 22 (Llama-3.1-8B, gpu_memory_utilization 0.50)"
CAPACITY_QWEN = "3 → 6 (Qwen2.5-14B, 3,261 blocks)"
DEMAND = "6,120 blocks full, 512 packed after H2O (6 requests at 16K)"

THROUGHPUT = (
    "Mistral-7B +9.9 to +37.3 %; Llama-3.1-8B +18.9 % on average; Scissorhands +33.3 to +103.7 %"
)
LATENCY = "Mistral-7B -9.9 to -27.5 %; Llama-3.1-8B -14.7 % on average"

UTILISATION = "+21.88 points over Naive-Evict (Llama-3.1-8B), +21.67 (Mistral-7B)"
UNDER_HALF = "56 / 58 / 56 % of blocks (H2O / Random / Scissorhands, ShareGPT)"
WASTE = "40-60 %"

SIX_CONTEXTS = 6120
"""Blocks that 6 requests of 16K tokens need in full."""

OVERHEAD = "< 1 % in throughput and p95"

ROUGE_DIFFERENCE = "-0.0016 on average over 144 generations"
ROUGE_CLOSE = "93.1 % within 0.01"
LENGTH_RATIO = "median 0.99"

PREFIX_BLOCKS = {2: "-33.0 %", 4: "-32.3 %", 8: "-42.2 %"}
PREFIX_THROUGHPUT = {2: "+76.1 %", 4: "+97.2 %", 8: "+146.5 %"}
