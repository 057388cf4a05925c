"""Models, references, engine runs, and a summary of what was compared."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.vllm import lab
from vtoken_sdk.testing.oracle import Reference, Verdict, total
from vtoken_sdk.testing.tiny_model import make_tiny_model

pytest.importorskip("vllm", reason="needs vLLM")

VERDICT, NOTE = "verdict", "note"
REPORTS = pytest.StashKey[list[pytest.TestReport]]()
Run = Callable[[str], dict[str, lab.Result]]
Record = Callable[[Verdict, str], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORTS] = reports = []
    config.pluginmanager.register(Collector(reports))


class Collector:
    """Keeps the reports of tests, which reach the summary even from other processes."""

    def __init__(self, reports: list[pytest.TestReport]) -> None:
        self._reports = reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # the last report of a test has all its properties
            self._reports.append(report)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Numbers that show what the comparisons were worth, passed or not."""
    told = [
        (report.nodeid.rpartition("::")[2], kind, value)
        for report in terminalreporter.config.stash[REPORTS]
        for kind, value in report.user_properties
    ]
    verdicts = [(name, value) for name, kind, value in told if kind == VERDICT]
    if verdicts:
        terminalreporter.section("tokens compared with masked attention")
        for name, value in verdicts:
            terminalreporter.line(f"{name}: {_verdict(value)}{value['note']}")
        terminalreporter.line(f"all: {total([_verdict(value) for _, value in verdicts])}")
    for name, kind, value in told:
        if kind == NOTE:
            terminalreporter.line(f"{name}: {value}")


def _verdict(value: dict[str, Any]) -> Verdict:
    fields = {key: value[key] for key in value if key != "note"}
    return Verdict(**{**fields, "wrong": tuple(map(tuple, value["wrong"]))})


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    """Add a verdict to the summary."""

    def record(verdict: Verdict, note: str = "") -> None:
        fields = asdict(verdict)
        fields["wrong"] = [list(wrong.values()) for wrong in fields["wrong"]]
        record_property(VERDICT, {**fields, "note": note and f"; {note}"})

    return record


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Add a line to the summary."""

    def note(text: str) -> None:
        record_property(NOTE, text)

    return note


class Models:
    """Folders of the models, and their references; each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._references: dict[str, Reference] = {}

    def __getitem__(self, name: str) -> Path:
        if name == "smol":
            from vtoken_sdk.models import prepare_small_model

            return prepare_small_model()
        folder = self._folder / name
        return folder if folder.exists() else make_tiny_model(folder)

    def reference(self, name: str) -> Reference:
        if name not in self._references:
            self._references[name] = Reference(self[name])
        return self._references[name]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The models."""
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def tiny(models: Models) -> str:
    """The folder of the tiny model, as arguments take it."""
    return str(models["tiny"])


@pytest.fixture
def nothing_starts() -> Iterator[None]:
    """A refusal leaves no process behind, not even half of an engine."""
    yield
    assert not multiprocessing.active_children()


@pytest.fixture(scope="module")
def run(
    request: pytest.FixtureRequest, models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Give the results of one of the module's ``ENGINES``, by name.

    Engines that can share a process run in it together, when the first of them is asked for.
    """
    engines = {name: make() for name, make in request.module.ENGINES.items()}
    groups: dict[Hashable, dict[str, lab.Engine]] = {}
    for name, engine in engines.items():
        groups.setdefault(engine.process, {})[name] = engine
    return _runner(list(groups.values()), models, tmp_path_factory)


@pytest.fixture(scope="module")
def run_matrix(
    request: pytest.FixtureRequest, models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """The same for the module's ``GROUPS`` of engines, each group in a process of its own."""
    groups = [
        {name: make() for name, make in group.items()} for group in request.module.GROUPS.values()
    ]
    return _runner(groups, models, tmp_path_factory)


def _runner(
    groups: Sequence[dict[str, lab.Engine]],
    models: Models,
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    results: dict[str, dict[str, lab.Result] | str] = {}

    def run(name: str) -> dict[str, lab.Result]:
        if name not in results:
            group = next(group for group in groups if name in group)
            results.update(lab.run(group, models, tmp_path_factory.mktemp("run")))
        result = results[name]
        assert not isinstance(result, str), f"engine {name} failed: {result}"
        return result

    return run
