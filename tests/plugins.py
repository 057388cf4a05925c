"""Third-party policy packages as pip would leave them: a module and a ``.dist-info`` folder."""

from __future__ import annotations

from pathlib import Path

GOOD = '''
from dataclasses import dataclass
from vtoken_sdk import ScoringPolicy, hookimpl

@dataclass
class Example(ScoringPolicy):
    """An example."""
    name = "{name}"
    {body}

    def score(self, seq):
        return seq.token_ids.float()

@hookimpl
def vtoken_policy():
    return Example
'''


def policy_source(name: str, body: str = "pass") -> str:
    """The source of a module with a proper policy."""
    return GOOD.format(name=name, body=body)


def install(
    site: Path,
    distribution: str,
    entries: dict[str, str],
    modules: dict[str, str] | None = None,
    version: str = "1.0",
) -> Path:
    """Install a distribution into a folder of the import path; returns its metadata folder."""
    site.mkdir(parents=True, exist_ok=True)
    for module, source in (modules or {}).items():
        (site / f"{module}.py").write_text(source)
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[vtoken.policies]", *lines, ""]))
    return info
