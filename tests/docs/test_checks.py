"""docs/reference/checks.md keeps step with the code."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest

from tests.conftest import ROOT
from vtoken_sdk.testing.catalogue import DOCS, all_checks

PAGE = (ROOT / DOCS).read_text()
SECTIONS = {
    section.partition("\n")[0]: re.split(r"^## ", section, flags=re.MULTILINE)[0]
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
}
CHECKS = all_checks()


def test_every_check_has_a_section_and_every_section_a_check() -> None:
    assert list(SECTIONS) == list(CHECKS)


@pytest.mark.parametrize("id_", CHECKS)
def test_a_section_says_what_is_checked_how_it_fails_and_how_to_mend_it(id_: str) -> None:
    section = SECTIONS[id_]
    assert f"*{CHECKS[id_].name}*." in section
    assert "\n**Fix:** " in section
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    broken = {"speed": "elementwise", "exact-on-vllm": "answers"}.get(id_, id_)
    source = (ROOT / f"tests/broken_policies/{broken.replace('-', '_')}.py").read_text()
    lines = {line.strip() for line in source.splitlines()}
    assert {line.strip() for line in dedent(code).splitlines()} <= lines


def test_the_number_of_checks_in_the_changelog() -> None:
    assert f"{len(CHECKS)} checks" in (ROOT / "CHANGELOG.md").read_text()
