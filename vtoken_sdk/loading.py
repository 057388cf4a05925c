"""Importing one policy and checking that it is one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from vtoken_sdk import hookspecs
from vtoken_sdk.errors import PolicyFamilyError, PolicyLoadError, UsageError
from vtoken_sdk.policy import API_VERSION, Policy

if TYPE_CHECKING:
    from types import ModuleType


def load_from_module(reference: str, name: str) -> type[Policy]:
    """Import the module of an entry point and ask it for its policy.

    Args:
        reference: The entry point's value.
        name: What the user wrote: the entry point's name, or ``NAME:VARIANT``.

    Raises:
        PolicyLoadError: If anything about it is wrong.
    """
    module = _import(reference)
    # A manager for each plugin: one that fails leaves nothing behind, and none hears of the others.
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, name=name)
        manager.check_pending()
        policy = _ask(manager, name)
    except PolicyFamilyError:
        raise
    except UsageError as error:  # it speaks for itself
        raise PolicyLoadError(str(error)) from error
    except (Exception, SystemExit) as error:
        raise PolicyLoadError(f"its hook failed: {_describe(error)}") from error
    if policy is None:
        raise PolicyLoadError(_nothing_returned(reference, name))
    _check_class(policy)
    if policy.name != name:
        raise PolicyLoadError(
            f"the class {policy.__name__} is named {policy.name!r}; "
            "entry point and class must have one name"
        )
    return policy  # type: ignore[no-any-return]


def _nothing_returned(reference: str, name: str) -> str:
    family, _, variant = name.partition(":")
    if variant:
        return f"{family} has no variants; leave :{variant} out"
    return f"module {reference} needs a function vtoken_policy with @hookimpl that returns a class"


def _ask(manager: pluggy.PluginManager, name: str) -> Any:
    variant = name.partition(":")[2]
    if variant:
        return manager.hook.vtoken_policy_variant(variant=variant)
    if manager.hook.vtoken_policy.get_hookimpls():
        return manager.hook.vtoken_policy()
    try:
        return manager.hook.vtoken_policy_variant(variant="")
    except UsageError as error:
        raise PolicyFamilyError(str(error)) from error


def is_file_reference(name: str) -> bool:
    """Whether a policy name is of the form ``path/to/file.py:Class``."""
    return name.endswith(".py") or ".py:" in name


def load_from_file(reference: str) -> type[Policy]:
    """Load a policy class from a file that belongs to no package.

    Args:
        reference: ``path/to/file.py:Class``.

    Raises:
        PolicyLoadError: If there is no such file or class, or it is no proper policy.
    """
    path, _, class_name = reference.rpartition(":")
    if not path.endswith(".py"):
        raise PolicyLoadError(
            f"say which class of {reference} is the policy: {reference}:ClassName"
        )
    if not Path(path).is_file():
        raise PolicyLoadError(f"policy file {path} does not exist (looked from {Path.cwd()})")
    try:
        policy = getattr(_import_file(Path(path).resolve()), class_name, None)
        if policy is None:
            raise PolicyLoadError(f"it has no class {class_name}")
        _check_class(policy)
    except PolicyLoadError as error:
        raise PolicyLoadError(f"policy file {path}: {error}") from error.__cause__
    return policy  # type: ignore[no-any-return]


def _import(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    try:
        loaded: Any = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            loaded = getattr(loaded, part)
    # SystemExit too: a module that calls sys.exit() must not end the program that imports it.
    except (Exception, SystemExit) as error:
        raise PolicyLoadError(f"importing {reference} failed: {_describe(error)}") from error
    return loaded


def _import_file(path: Path) -> ModuleType:
    # The whole path is in the name, so two files called alike do not share a module.
    name = "vtoken_policy_file_" + "".join(c if c.isalnum() else "_" for c in str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PolicyLoadError(f"running it failed: {_describe(error)}") from error
    return module


def _check_class(policy: Any) -> None:
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise PolicyLoadError(f"got {policy!r}, but it should be a subclass of vtoken_sdk.Policy")
    if not isinstance(getattr(policy, "name", None), str) or not policy.name:
        raise PolicyLoadError(f'the class {policy.__name__} needs a name: `name = "my-policy"`')
    if policy.api_version != API_VERSION:
        raise PolicyLoadError(
            f"it is written for version {policy.api_version!r} of the policy interface, "
            f"and this is version {API_VERSION}; install matching versions"
        )
    _check_dataclass(policy)


def _check_dataclass(policy: type[Policy]) -> None:
    """Without the decorator, new fields would be class attributes that nobody can set."""
    if "__dataclass_fields__" in vars(policy):
        return
    fields = [
        name
        for name, hint in vars(policy).get("__annotations__", {}).items()
        if "ClassVar" not in str(hint)
    ]
    if fields:
        raise PolicyLoadError(
            f"the class {policy.__name__} has parameters ({', '.join(fields)}) "
            "but is no dataclass; put @dataclass above it"
        )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
