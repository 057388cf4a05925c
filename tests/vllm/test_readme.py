"""The README's Python example, as a user would run it: vLLM's default processes and all."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.conftest import ROOT
from vtoken_sdk.models import prepare_small_model


def test_the_python_example(tmp_path):
    prepare_small_model()
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (example,) = (block for block in blocks if "LLM(**arguments)" in block)
    file = tmp_path / "example.py"
    file.write_text(example)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    done = subprocess.run(
        [sys.executable, file], env=environment, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert len(done.stdout.strip().splitlines()[-1].split()) > 5, done.stdout
