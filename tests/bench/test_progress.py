import io

from rich.console import Console

from vtoken_sdk.bench import progress


def plain():
    stream = io.StringIO()
    return stream, progress.Progress(Console(file=stream, force_terminal=False))


def test_plain_lines_where_nobody_watches():
    stream, shown = plain()
    with shown.step("vtoken") as update:
        update({"stage": "loading the model"})
        update({"finished": 0, "total": 4, "running": 2})  # too soon after the line before
    assert stream.getvalue() == "vtoken: loading the model …\nvtoken: done in 0 s\n"


def test_counts_appear_once_in_a_while(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    stream, shown = plain()
    with shown.step("off") as update:
        update({"finished": 1, "total": 4, "running": 2})
    assert "off: 1 of 4 requests done, 2 running\n" in stream.getvalue()


def test_a_step_that_fails_is_not_called_done():
    stream, shown = plain()
    try:
        with shown.step("off"):
            raise RuntimeError
    except RuntimeError:
        pass
    assert "done" not in stream.getvalue()


def test_a_terminal_gets_one_moving_line():
    stream = io.StringIO()
    shown = progress.Progress(Console(file=stream, force_terminal=True, width=80))
    with shown.step("off") as update:
        update({"stage": "loading [the] model"})
    assert "off: loading [the] model …" in stream.getvalue()
    assert stream.getvalue().endswith("off: done in 0 s\n")
