"""Models, references, engine runs, and a summary of what was compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vllm import lab
from vtoken_sdk.testing.oracle import Reference, Verdict, total
from vtoken_sdk.testing.tiny_model import make_tiny_model

pytest.importorskip("vllm", reason="needs vLLM")

TALLY = pytest.StashKey[list[tuple[str, Verdict, str]]]()
NOTES = pytest.StashKey[list[str]]()
Run = Callable[[str], dict[str, lab.Result]]
Record = Callable[[Verdict, str], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLY] = []
    config.stash[NOTES] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Numbers that show what the comparisons were worth, passed or not."""
    tally = terminalreporter.config.stash[TALLY]
    if tally:
        terminalreporter.section("tokens compared with masked attention")
        for name, verdict, note in tally:
            terminalreporter.line(f"{name}: {verdict}{note}")
        terminalreporter.line(f"all: {total([verdict for _, verdict, _ in tally])}")
    for note in terminalreporter.config.stash[NOTES]:
        terminalreporter.line(note)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Add a verdict to the summary."""

    def record(verdict: Verdict, note: str = "") -> None:
        request.config.stash[TALLY].append((request.node.name, verdict, note and f"; {note}"))

    return record


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Add a line to the summary."""

    def note(text: str) -> None:
        request.config.stash[NOTES].append(f"{request.node.name}: {text}")

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


@pytest.fixture(scope="module")
def run(
    request: pytest.FixtureRequest, models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Give the results of one of the module's ``ENGINES``, by name.

    Engines that can share a process run in it together, when the first of them is asked for.
    """
    engines = {name: make() for name, make in request.module.ENGINES.items()}
    results: dict[str, dict[str, lab.Result] | str] = {}

    def run(name: str) -> dict[str, lab.Result]:
        if name not in results:
            wanted = engines[name].process
            group = {n: e for n, e in engines.items() if e.process == wanted}
            results.update(lab.run(group, models, tmp_path_factory.mktemp("run")))
        result = results[name]
        assert not isinstance(result, str), f"engine {name} failed: {result}"
        return result

    return run


@pytest.fixture
def run_alone(models: Models, tmp_path: Path) -> Callable[[lab.Engine], dict[str, lab.Result]]:
    """Give the results of one engine in a process of its own."""

    def run_alone(engine: lab.Engine) -> dict[str, lab.Result]:
        result = lab.run({"engine": engine}, models, tmp_path)["engine"]
        assert not isinstance(result, str), f"the engine failed: {result}"
        return result

    return run_alone
