"""A real ``vtoken serve``, in processes of its own, and what can be asked of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.conftest import ROOT
from vtoken_sdk.testing.tiny_model import VOCAB_SIZE

ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}
START_SECONDS = 300
SAMPLE = re.compile(r"^([a-zA-Z_:]+)(\{[^}]*\})? ([-+0-9.eE]+)$", re.MULTILINE)


def add_tokenizer(folder: Path) -> Path:
    """Give a tiny model a tokenizer of one token per word: ``w17`` is token 17."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.log = process, log
        self.url = f"http://127.0.0.1:{port}"

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"it ended: {self.log.read_text()[-6000:]}"
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.5)
        raise AssertionError(f"it did not come up: {self.log.read_text()[-6000:]}")

    def metrics(self) -> dict[str, float]:
        """Samples by name, those with labels added up."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as page:
            text = page.read().decode()
        found: dict[str, float] = {}
        for name, _, value in SAMPLE.findall(text):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def wait_until_idle(self) -> dict[str, float]:
        """Metrics once nothing runs and every block is back."""
        names = (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vtoken_allocated_blocks",
        )
        return self.wait_until(lambda found: not any(found[name] for name in names))

    def wait_until(self, is_so: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Metrics once they are as they should become."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if is_so(found := self.metrics()):
                return found
            time.sleep(0.2)
        raise AssertionError(f"metrics did not become what they should: {found}")

    def stop(self) -> int:
        """End it as a user would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)


@contextmanager
def serving(
    model: Path, folder: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run ``vtoken serve`` on a free port; afterwards none of its processes is left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    command = [sys.executable, str(ROOT / "cli.py"), "serve", str(model), *options]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    server = Server(process, port, log)
    try:
        server.wait_until_up()
        yield server
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if alive(process) else []
        if alive(process):
            server.stop()
        _, left = psutil.wait_procs(children, timeout=30)
        for child in left:
            child.kill()
    assert not left, f"processes were left: {left}"


def alive(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is None
