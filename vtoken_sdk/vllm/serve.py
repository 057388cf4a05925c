"""vLLM's OpenAI server with our configuration."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import socket
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.errors import ConfigError, EngineError, VTokenError, one_line
from vtoken_sdk.vllm import ending
from vtoken_sdk.vllm.compat import check_vllm
from vtoken_sdk.vllm.serve_args import ServeSettings, server_args

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["ServeSettings", "serve"]

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
UNUSABLE = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)


def serve(settings: ServeSettings, arguments: Sequence[str]) -> None:
    """Run the server until it is told to stop.

    Args:
        settings: Ours.
        arguments: What ``vllm serve`` takes: the model and any of its options.

    Raises:
        UsageError: If something is refused; nothing was started.
        EngineError: If the engine did not come up, or ended by itself.
    """
    share_folder()
    check_vllm()
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup

    cli_env_setup()
    args = server_args(settings, arguments)
    _run(args)
    if ending.engine_died():
        raise EngineError(f"the engine has ended, and the server with it: {_reason()}")


def _run(args: Namespace) -> None:
    """Run vLLM's server; what it raises at its end was logged, with a traceback, where it began."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.logger import configure_logging_from_args

    configure_logging_from_args(args)
    try:
        ServeSubcommand.cmd(args)
    except OSError as error:
        if error.errno in UNUSABLE or isinstance(error, socket.gaierror):
            where = f"{args.host or 'any address'}, port {args.port}"
            raise ConfigError(
                f"cannot listen on {where}: {error.strerror}; choose another --host or --port"
            ) from error
        raise
    except VTokenError:
        raise
    except RuntimeError as error:
        raise EngineError(f"the server has ended: {ending.last_words() or error}") from error
    except Exception as error:  # an adapter that is not there, say: found once the engine runs
        traceback.print_exc()
        raise EngineError(f"the server has ended: {one_line(error)}") from error


def _reason() -> str:
    return ending.last_words() or (
        "it left no word. vLLM's log above may say why; a process that is killed, say for want of "
        "memory, shows there as one that died"
    )


def share_folder() -> None:
    """Make the folder in which the server's processes meet: metrics, and the engine's last words.

    prometheus-client decides when it is imported that it works with several processes, so this
    comes before vLLM is.

    Raises:
        ConfigError: If the user has chosen a folder for metrics that is none.
    """
    chosen = os.environ.get(METRICS_FOLDER)
    if chosen and not os.access(chosen, os.W_OK | os.X_OK):
        raise ConfigError(f"{METRICS_FOLDER}: {chosen} is no folder one can write to; create it")
    folder = Path(tempfile.mkdtemp(prefix="vtoken-serve-"))
    atexit.register(_remove, folder, os.getpid())
    os.environ[ending.WORDS_FILE] = str(folder / "last-words")
    if not chosen:
        os.environ[METRICS_FOLDER] = str(folder)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
