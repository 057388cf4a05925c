"""The Python of the README runs as it stands there, on the small model."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.conftest import ROOT


def test_the_engine_of_the_readme_answers(tmp_path):
    source = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    program = tmp_path / "readme.py"
    program.write_text(source)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.strip().splitlines()[-1]) > 10, done.stdout
