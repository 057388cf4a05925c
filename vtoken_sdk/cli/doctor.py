"""``vtoken doctor``: whether vToken works here, and with which features of vLLM."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from vtoken_sdk.cli import console
from vtoken_sdk.versions import ENGINE, versions

FAILURE = 1
PACKAGES = (*ENGINE, "triton", "numba", "prometheus-client")


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object to stdout instead of tables.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show vLLM's own log.")] = False,
) -> None:
    """Start a small engine, evict in it, and say what works on this machine and what does not.

    Exit code 0 if everything is in order, 1 if something is not.
    """
    from vtoken_sdk.vllm.compat_table import compatibility

    found, problem = _examine(verbose=verbose)
    checks = checks_of(found, problem)
    rows = [
        {"feature": row.feature, "status": row.status.value, "remark": row.remark}
        for row in compatibility()
    ]
    ok = all(check["ok"] for check in checks)
    if as_json:
        told = {"ok": ok, "versions": versions(*PACKAGES), "checks": checks, "compatibility": rows}
        console.print_json({**told, **found})
    else:
        _show(checks, rows)
    raise typer.Exit(0 if ok else FAILURE)


def _examine(*, verbose: bool) -> tuple[dict[str, Any], str | None]:
    """What the engine shows, in a process of its own; and what went wrong, if anything did."""
    from vtoken_sdk.bench.child import run_job, sigterm_interrupts
    from vtoken_sdk.bench.progress import Progress
    from vtoken_sdk.bench.run import require_vllm
    from vtoken_sdk.errors import VTokenError

    with tempfile.TemporaryDirectory() as folder, sigterm_interrupts():
        log = None if verbose else Path(folder, "log.txt")
        try:
            require_vllm()
            with Progress().step("doctor") as update:
                return run_job({"job": "doctor"}, log=log, on_progress=update), None
        except VTokenError as error:
            return {}, str(error).split("\nThe full log is")[0]


def checks_of(found: dict[str, Any], problem: str | None) -> list[dict[str, Any]]:
    """One record per check: its name, whether it is in order, and what was seen."""
    if problem:
        return [_check("engine", False, f"{problem}; --verbose shows vLLM's log")]
    device, engine, canary = found["platform"], found["engine"], found["canary"]
    wrong = canary["wrong_tokens"]
    judged = "not compared on this platform" if wrong is None else f"{wrong} wrong"
    return [
        _check("platform", True, f"{device['name']}: {device['device']}"),
        _check("model runner", True, engine["runner"]),
        _check("attention backend", True, engine["attention_backend"]),
        _check(
            "kernel block sizes",
            True,
            f"{', '.join(engine['kernel_block_sizes'])}; {engine['block_size']} in use",
        ),
        _check(
            "KV layout",
            True,
            f"{engine['layout']} ({engine['kv_dtype']}), {engine['layout_found']}",
        ),
        _check(
            "blocks come back",
            canary["freed_blocks"] > 0 and canary["lost_blocks"] == 0,
            f"{canary['cuts']} cuts freed {canary['freed_blocks']} blocks; "
            f"{canary['lost_blocks']} lost",
        ),
        _check("tokens", not wrong, f"{canary['tokens']} generated, {judged}"),
    ]


def _check(name: str, ok: bool, seen: str) -> dict[str, Any]:
    return {"check": name, "ok": ok, "seen": seen}


def _show(checks: list[dict[str, Any]], rows: list[dict[str, str]]) -> None:
    console.print_table(
        ["package", "version"], [list(pair) for pair in versions(*PACKAGES).items()]
    )
    typer.echo()
    console.print_table(
        ["check", "", "seen"],
        [[each["check"], "ok" if each["ok"] else "FAILED", each["seen"]] for each in checks],
    )
    typer.echo()
    console.print_table(["feature", "", "remark"], [list(row.values()) for row in rows])
