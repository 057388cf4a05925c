"""``vtoken validate``: run the conformance checks on a policy."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from vtoken_sdk.cli import console
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from vtoken_sdk.testing.results import Result
    from vtoken_sdk.testing.runner import Settings


class ProfileName(StrEnum):
    """How hard to look."""

    QUICK = "quick"
    DEFAULT = "default"
    THOROUGH = "thorough"


def validate(
    policy: Annotated[
        str | None, typer.Argument(help="A policy's name, or path/to/file.py:Class.")
    ] = None,
    check: Annotated[
        list[str] | None, typer.Option(help="Run only this check or group; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave this check or group out; repeatable.")
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=REASON", help="A check that is known to fail, and why; repeatable."
        ),
    ] = None,
    profile: Annotated[ProfileName, typer.Option(help="How hard to look.")] = ProfileName.DEFAULT,
    seed: Annotated[int, typer.Option(help="Where the search begins.")] = 0,
    replay: Annotated[
        Path | None, typer.Option(help="Look at one failure again, from its replay file.")
    ] = None,
    vllm: Annotated[
        bool, typer.Option("--vllm", help="Also run the policy on real vLLM; takes minutes.")
    ] = False,
    list_checks: Annotated[
        bool, typer.Option("--list-checks", help="List the checks and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Also write a JUnit XML file.")] = None,
) -> None:
    """Check that a policy keeps the promises every policy makes.

    Exit codes: 0 if all checks pass or fail as expected, 1 if one fails or an expected failure
    passes, 2 if nothing could be checked.
    """
    _require_hypothesis()
    if list_checks:
        _list_checks(as_json)
        return
    if policy is None:
        raise ConfigError("say which policy: vtoken validate NAME, or path/to/file.py:Class")
    settings = _settings(check or [], exclude or [], expect or [], profile, seed, replay, vllm)
    raise typer.Exit(_run(policy, settings, as_json, junit))


def _run(policy: str, settings: Settings, as_json: bool, junit: Path | None) -> int:
    from vtoken_sdk.testing import files, runner, terminal

    # With --json the results are for a program, and people watch the progress on standard error.
    def tell(result: Result) -> None:
        typer.echo(terminal.result_line(result), err=as_json)

    if junit:
        _refuse_unwritable(junit)
    report = runner.validate(policy, settings, tell)
    if not report.results:
        typer.echo("Error: no check is left to run; exclude fewer of them", err=True)
    if junit:
        files.write_junit(report, junit)
    if as_json:
        console.print_json(files.to_json(report))
    else:
        typer.echo("\n".join(terminal.report_lines(report)))
    return report.exit_code


def _refuse_unwritable(junit: Path) -> None:
    """Say so now, and not after minutes of checks."""
    if junit.is_dir():
        raise ConfigError(f"--junit {junit} is a folder; name a file")
    above = next(folder for folder in junit.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ConfigError(f"--junit {junit} cannot be written: {above} is no folder")
    if not os.access(junit if junit.exists() else above, os.W_OK):
        raise ConfigError(f"--junit {junit} cannot be written: permission denied")


def _settings(
    check: list[str],
    exclude: list[str],
    expect: list[str],
    profile: ProfileName,
    seed: int,
    replay: Path | None,
    vllm: bool,
) -> Settings:
    from vtoken_sdk.paths import expanded
    from vtoken_sdk.testing.profiles import profile_named
    from vtoken_sdk.testing.replay import read_replay
    from vtoken_sdk.testing.runner import Settings

    return Settings(
        only=check,
        exclude=exclude,
        profile=profile_named(profile.value),
        seed=seed,
        expected=dict(map(_expectation, expect)),
        vllm=vllm,
        replay=None if replay is None else read_replay(expanded(replay)),
    )


def _expectation(text: str) -> tuple[str, str]:
    id_, equals, reason = text.partition("=")
    if not (equals and id_.strip() and reason.strip()):
        raise ConfigError(f"--expect {text!r} should look like ID=REASON")
    return id_.strip(), reason.strip()


def _list_checks(as_json: bool) -> None:
    from vtoken_sdk.testing.catalogue import all_checks

    checks = all_checks().values()
    if as_json:
        fields = ("id", "group", "name", "needs", "docs")
        console.print_json([{name: getattr(each, name) for name in fields} for each in checks])
    else:
        rows = [[each.id, each.group.value, each.name] for each in checks]
        console.print_table(["check", "group", "what it says of a policy that passes"], rows)


def _require_hypothesis() -> None:
    from vtoken_sdk.models import cache_folder

    # Whoever checks a policy has not asked for a folder .hypothesis where they stand.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache_folder() / "hypothesis"))
    try:
        import hypothesis  # noqa: F401
    except ImportError:
        raise ConfigError(
            "vtoken validate needs Hypothesis: pip install 'vtoken-sdk[testing]'"
        ) from None
    except Exception as error:  # its import reads the entry points of all that is installed
        from vtoken_sdk import registry

        if not (broken := registry.unreadable()):
            raise
        raise ConfigError(
            "Hypothesis, which vtoken validate needs, cannot be imported beside a package with "
            f"unreadable metadata: {', '.join(broken)}; reinstall or remove it"
        ) from error
