"""The documentation says what is so: its snippets work and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
HOW_TO = ROOT / "docs/how-to/publish-a-policy.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        linked = (page.parent / target) if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(linked), f"{page.name} links to {target}#{anchor}"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / target).resolve() for target, _ in LINK.findall(index.read_text())}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if "examples" not in page.parts}
    pages -= {ROOT / "docs/results/report.md"}  # made by `make bench`, for results/README.md
    assert pages - {index} <= linked


def test_the_published_policy_of_the_how_to_works(
    tmp_path: Path, vtoken, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    for name, language in (("vtoken_oldest_half.py", "python"), ("pyproject.toml", "toml")):
        (project / name).write_text(_block(HOW_TO, name, language))
    quick = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *quick, "--target", str(site), str(project)],
        check=True,
    )
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    assert "vtoken-oldest-half 0.1.0" in vtoken("policies").stdout
    described = vtoken("policies", "info", "oldest-half").stdout
    assert "Share of the tokens that are rated as if they were new" in described


def _block(page: Path, name: str, language: str) -> str:
    """The code block that follows a file's name."""
    match = re.search(
        rf"`{re.escape(name)}`:\n\n```{language}\n(.*?)```", page.read_text(), re.DOTALL
    )
    assert match, f"{page.name} shows no {name}"
    return match[1]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
