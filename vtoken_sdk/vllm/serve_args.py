"""The options of ``vtoken serve``: ours and vLLM's, checked before anything starts."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vtoken_sdk.errors import ConfigError, UnsupportedError, UsageError, one_line
from vtoken_sdk.parameters import DEFAULT_PRESET
from vtoken_sdk.vllm.config_file import checked_config_file
from vtoken_sdk.vllm.engine import engine_args

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

MIDDLEWARE = "vtoken_sdk.vllm.request_check.RequestCheck"


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


def server_args(settings: ServeSettings, arguments: Sequence[str]) -> Namespace:
    """The arguments of vLLM's server with ours added, all of them checked.

    Raises:
        UsageError: Saying what is wrong.
    """
    from vllm import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args

    parser = make_arg_parser(_parser())
    args = _parsed(parser, checked_config_file(arguments))
    _check_frontend(args)
    _check_address(args)
    if args.model_tag is None and args.model == parser.get_default("model"):
        raise ConfigError(
            "no model: name a folder or a hub model before options that take several values, as "
            "in `vtoken serve MODEL --policy …`"
        )
    args.model = args.model_tag or args.model
    try:
        validate_parsed_serve_args(args)
    except Exception as error:  # vLLM's own checks raise whatever they come across
        raise ConfigError(f"vLLM refuses these options: {one_line(error)}") from error
    _check_middleware(args.middleware)
    _check_tool_parser(args)
    chosen = {
        name: getattr(args, name)
        for name in EngineArgs.__dataclass_fields__
        if hasattr(args, name) and getattr(args, name) != parser.get_default(name)
    }
    for name, value in _engine_args(settings, args, chosen).items():
        setattr(args, name, value)
    args.middleware = [MIDDLEWARE, *args.middleware]
    return args


def _parsed(parser: Any, arguments: Sequence[str]) -> Namespace:
    try:
        parsed: Namespace = parser.parse_args(list(arguments))
    except UsageError:
        raise
    except Exception as error:  # vLLM turns many values into objects while it parses
        raise ConfigError(f"vLLM does not take these options: {one_line(error)}") from error
    return parsed


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
    if args.headless or args.api_server_count == 0:
        raise UnsupportedError(
            "without a server in this process nobody checks requests: drop --headless and "
            "--api-server-count 0"
        )


def _check_address(args: Namespace) -> None:
    if not 0 <= args.port < 2**16:
        raise ConfigError(f"--port {args.port}: ports are numbers from 0 to {2**16 - 1}")
    for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
        file = getattr(args, name)
        if file and not Path(file).is_file():
            raise ConfigError(f"--{name.replace('_', '-')}: there is no file {file}")
    if args.uds and not Path(args.uds).absolute().parent.is_dir():
        raise ConfigError(f"--uds {args.uds}: its folder does not exist; create it")


def _check_middleware(names: Sequence[str]) -> None:
    """That they are there; vLLM imports them only once the engine runs."""
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # whatever the module does
            raise ConfigError(f"--middleware {name} cannot be imported: {error!r}") from error
        if not (inspect.isclass(found) or inspect.iscoroutinefunction(found)):
            raise ConfigError(f"--middleware {name} is neither a class nor an async function")


def _check_tool_parser(args: Namespace) -> None:
    """That there is such a parser; those of a plugin are known once the server has loaded it."""
    from vllm.tool_parsers import ToolParserManager

    known = ToolParserManager.list_registered()
    asked = args.enable_auto_tool_choice and not args.tool_parser_plugin
    if asked and args.tool_call_parser not in known:
        raise ConfigError(
            f"--tool-call-parser {args.tool_call_parser}: there is no such parser; choose one of "
            f"{', '.join(sorted(known))}"
        )


def _parser() -> Any:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc, unused-ignore]
        def error(self, message: str) -> NoReturn:
            """Without the usage, which is 300 lines long."""
            raise ConfigError(
                f"vLLM does not take this: {one_line(message)}; see `vllm serve --help=all`"
            )

    return Parser(prog="vtoken serve", add_help=False)
