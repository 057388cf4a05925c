"""vLLM's OpenAI server with our configuration."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from vtoken_sdk.errors import ConfigError, UnsupportedError
from vtoken_sdk.parameters import DEFAULT_PRESET
from vtoken_sdk.vllm.compat import check_vllm
from vtoken_sdk.vllm.engine import engine_args

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

MIDDLEWARE = "vtoken_sdk.vllm.request_check.RequestCheck"
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What is ours of a server's settings; see :func:`vtoken_sdk.vllm.engine_args`."""

    policy: str
    budget: int
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    preset: str = DEFAULT_PRESET
    prefill_interval: int | None = None
    trigger: str = "budget"
    strict: bool = False
    check_invariants: bool = False
    trace: str | None = None


def serve(settings: ServeSettings, arguments: Sequence[str]) -> None:
    """Run the server until it is told to stop.

    Args:
        settings: Ours.
        arguments: What ``vllm serve`` takes: the model and any of its options.

    Raises:
        UsageError: If something is refused; nothing was started.
    """
    share_metrics()
    check_vllm()
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup

    cli_env_setup()
    args = server_args(settings, arguments)

    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.logger import configure_logging_from_args

    configure_logging_from_args(args)
    ServeSubcommand.cmd(args)


def share_metrics() -> None:
    """Let every process of the server add to the one page of metrics.

    prometheus-client decides when it is imported, so this comes before vLLM is.
    """
    if METRICS_FOLDER not in os.environ:
        folder = tempfile.mkdtemp(prefix="vtoken-metrics-")
        os.environ[METRICS_FOLDER] = folder
        atexit.register(_remove, folder, os.getpid())


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def server_args(settings: ServeSettings, arguments: Sequence[str]) -> Namespace:
    """The arguments of vLLM's server with ours added, all of them checked.

    Raises:
        UsageError: Saying what is wrong.
    """
    from vllm import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args

    parser = make_arg_parser(_parser())
    args: Namespace = parser.parse_args(list(arguments))
    _check_frontend(args)
    if args.model_tag is None and args.model == parser.get_default("model"):
        raise ConfigError(
            "no model: name a folder or a hub model before options that take several values, as "
            "in `vtoken serve MODEL --policy …`"
        )
    args.model = args.model_tag or args.model
    try:
        validate_parsed_serve_args(args)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"vLLM refuses these options: {error}") from None
    chosen = {
        name: getattr(args, name)
        for name in EngineArgs.__dataclass_fields__
        if hasattr(args, name) and getattr(args, name) != parser.get_default(name)
    }
    for name, value in _engine_args(settings, args, chosen).items():
        setattr(args, name, value)
    args.middleware = [MIDDLEWARE, *args.middleware]
    return args


def _engine_args(
    settings: ServeSettings, args: Namespace, chosen: dict[str, Any]
) -> dict[str, Any]:
    """Have them checked. The seed is vLLM's option, and the policy's seed too."""
    seed = chosen.pop("seed", None)
    chosen.pop("model", None)
    return engine_args(
        args.model,
        policy=settings.policy,
        budget=settings.budget,
        policy_args=settings.policy_args,
        preset=settings.preset,
        prefill_interval=settings.prefill_interval,
        trigger=settings.trigger,
        seed=seed or 0,
        strict=settings.strict,
        check_invariants=settings.check_invariants,
        trace=settings.trace,
        publish_metrics=True,
        **chosen,
    )


def _check_frontend(args: Namespace) -> None:
    """Requests are checked in vLLM's Python server, and nowhere else."""
    from vllm import envs

    if getattr(args, "grpc", False) or getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
        raise UnsupportedError(
            "only vLLM's HTTP server in Python checks requests: drop --grpc, unset "
            "VLLM_USE_RUST_FRONTEND"
        )


def _parser() -> Any:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc, unused-ignore]
        def error(self, message: str) -> NoReturn:
            """Without the usage, which is 300 lines long."""
            raise ConfigError(f"vLLM does not take this: {message}; see `vllm serve --help=all`")

    return Parser(prog="vtoken serve", add_help=False)
