"""How long a step takes: a prediction, from three constants.

    seconds = step + token * tokens computed + kv * tokens of KV read

*step* is reading the weights once and starting the kernels, *token* the arithmetic of one token,
*kv* reading the keys and values of one token. It leaves out what overlaps, and the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from vtoken_sdk.errors import ConfigError

PARTS = 3


@dataclass(frozen=True, slots=True)
class Clock:
    """The model of time. The defaults are worked out for Llama-3.1-8B in bfloat16 on an H100.

    16 GB of weights at 3.35 TB/s and 2 ms of kernel starts; 16 GFLOP per token at 400 TFLOP/s;
    128 KiB of KV per token at 3 TB/s. Nobody measured them here.

    Attributes:
        step: Seconds per step.
        token: Seconds per token computed.
        kv: Seconds per token of KV read.
    """

    step: float = 7e-3
    token: float = 4e-5
    kv: float = 4.4e-8

    def seconds(self, tokens: int, kv_tokens: int) -> float:
        """How long a step takes."""
        return self.step + self.token * tokens + self.kv * kv_tokens


def parse_clock(text: str) -> Clock:
    """Read ``STEP,TOKEN,KV``, seconds each.

    Raises:
        ConfigError: If it is something else, or a step takes no time.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != PARTS or not all(0 <= n < float("inf") for n in numbers) or not numbers[0]:
        raise ConfigError(
            "--clock must be STEP,TOKEN,KV in seconds, with a step above 0, like "
            f"7e-3,4e-5,4.4e-8; got {text}"
        )
    return Clock(*numbers)
