"""``vtoken doctor`` on this machine, for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.conftest import ROOT
from tests.vllm.served import ENVIRONMENT


def test_this_machine(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "doctor", "--json"],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    assert told["canary"]["cuts"] == 3
    assert told["canary"]["wrong_tokens"] == 0
    assert told["canary"]["lost_blocks"] == 0
    assert told["engine"]["kernel_block_sizes"] == ["multiples of 32"]
    assert {"vtoken-sdk", "python", "torch"} <= set(told["versions"])
    assert list(tmp_path.iterdir()) == []
