"""Importing one policy and checking that it is one."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from vtoken_sdk import hookspecs
from vtoken_sdk.errors import MissingClassError, PolicyFamilyError, PolicyLoadError, UsageError
from vtoken_sdk.parameters import did_you_mean
from vtoken_sdk.paths import expanded
from vtoken_sdk.policy import API_VERSION, Policy, ScoringPolicy, Signal

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
    policy = ask_hook(import_reference(reference), reference, name)
    check_class(policy)
    if f"{policy.name}:" == name:
        raise PolicyFamilyError(f"{policy.name} has no variants; leave the colon out")
    if policy.name != name:
        raise PolicyLoadError(
            f"the class {policy.__name__} is named {policy.name!r}; "
            "entry point and class must have one name"
        )
    return policy  # type: ignore[no-any-return]


def ask_hook(module: Any, reference: str, name: str) -> Any:
    """Ask a module for its policy.

    Args:
        module: The module of an entry point.
        reference: The entry point's value.
        name: The entry point's name.

    Returns:
        Whatever the hook returned, unchecked.

    Raises:
        PolicyLoadError: If it has no proper hook, or the hook fails or returns nothing.
    """
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
        kind = PolicyFamilyError if ":" in name else PolicyLoadError
        raise kind(str(error)) from error
    except (Exception, SystemExit) as error:
        raise PolicyLoadError(f"its hook failed: {_describe(error)}") from error
    if policy is None:
        raise _nothing_returned(reference, name)
    return policy


def _nothing_returned(reference: str, name: str) -> PolicyLoadError:
    family, _, variant = name.partition(":")
    if variant:
        return PolicyFamilyError(f"{family} has no variants; leave :{variant} out")
    return PolicyLoadError(
        f"module {reference} needs a function vtoken_policy with @hookimpl that returns a class"
    )


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
    """Whether a policy name is of the form ``path/to/file.py:Class``, or was meant to be."""
    return name.endswith(".py") or ".py:" in name or "/" in name.partition(":")[0]


def load_from_file(reference: str) -> type[Policy]:
    """Load a policy class from a file that belongs to no package.

    Args:
        reference: ``path/to/file.py:Class``.

    Raises:
        PolicyLoadError: If there is no such file or class, or it is no proper policy.
    """
    found = FileReference.parse(reference)
    try:
        policy = found.class_in(import_file(found.path.resolve()))
        check_class(policy)
    except PolicyLoadError as error:
        raise type(error)(f"policy file {found.path}: {error}") from error.__cause__
    return policy  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class FileReference:
    """``path/to/file.py:Class``, taken apart.

    Attributes:
        path: The file, which exists.
        class_name: The class, which may not.
    """

    path: Path
    class_name: str

    @classmethod
    def parse(cls, reference: str) -> FileReference:
        """Take a reference apart.

        Raises:
            PolicyLoadError: If it names no class, or there is no such file.
        """
        file, _, class_name = _split(reference)
        path = expanded(file)
        if path.is_dir():
            raise PolicyLoadError(
                f"{path} is a folder: name a file in it, {path / 'FILE.py'}:{class_name or 'Class'}"
            )
        if not path.is_file():
            raise PolicyLoadError(_no_file(path, class_name))
        if path.suffix != ".py":
            raise PolicyLoadError(f"policy file {path} is no Python file: its name should end .py")
        if not class_name:
            raise PolicyLoadError(
                f"say which class of {path} is the policy: {path}:{_only_class(path)}"
            )
        return cls(path, class_name)

    def class_in(self, module: ModuleType) -> Any:
        """Take the class out of the module of the file; it may be anything.

        Raises:
            MissingClassError: If it has none of that name; lists the policies it has.
        """
        found = getattr(module, self.class_name, None)
        if found is not None:
            return found
        known = _policies_in(module)
        has = f"Its policies: {', '.join(known)}" if known else "It has no policies at all"
        hint = did_you_mean(self.class_name, known)
        raise MissingClassError(f"it has no class {self.class_name}{hint} {has}")


def _policies_in(module: ModuleType) -> list[str]:
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    return [
        each.__name__
        for each in classes
        if issubclass(each, Policy) and each.__module__ == module.__name__
    ]


def _split(reference: str) -> tuple[str, str, str]:
    """The path, a colon and the class; of a path alone, the other two are empty."""
    if reference.endswith(".py"):
        return reference, "", ""
    if ".py:" in reference:
        file, colon, class_name = reference.partition(".py:")
        return f"{file}.py", colon, class_name
    return reference.partition(":")


def _no_file(path: Path, class_name: str) -> str:
    with_suffix = path.with_name(f"{path.name}.py")
    if with_suffix.is_file():
        return f"there is no file {path}; did you mean {with_suffix}:{class_name or 'Class'}?"
    if path.exists():
        return f"policy file {path} is no file that can be imported"
    return f"policy file {path} does not exist (looked from {Path.cwd()})"


def _only_class(path: Path) -> str:
    """The class to name: the only one in a file, else whatever its name may be."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return "ClassName"
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return classes[0] if len(classes) == 1 else "ClassName"


def import_reference(reference: str) -> Any:
    """Import the value of an entry point.

    Raises:
        PolicyLoadError: If that fails in whatever way.
    """
    module, _, attribute = reference.partition(":")
    try:
        loaded: Any = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            loaded = getattr(loaded, part)
    # SystemExit too: a module that calls sys.exit() must not end the program that imports it.
    except (Exception, SystemExit) as error:
        raise PolicyLoadError(f"importing {reference} failed: {_describe(error)}") from error
    return loaded


def import_file(path: Path) -> ModuleType:
    """Run a file that belongs to no package.

    Raises:
        PolicyLoadError: If that fails in whatever way.
    """
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


def check_class(policy: Any) -> None:
    """See that a policy is one.

    Raises:
        PolicyLoadError: Saying what is missing.
    """
    check_kind(policy)
    check_api_version(policy)
    check_dataclass(policy)
    check_answers(policy)
    check_declarations(policy)


def check_kind(policy: Any) -> None:
    """See that it is a subclass of ``Policy`` with a name.

    Raises:
        PolicyLoadError: If it is not.
    """
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise PolicyLoadError(f"got {policy!r}, but it should be a subclass of vtoken_sdk.Policy")
    if not isinstance(getattr(policy, "name", None), str) or not policy.name:
        raise PolicyLoadError(f'the class {policy.__name__} needs a name: `name = "my-policy"`')


def check_api_version(policy: type[Policy]) -> None:
    """See that it is written for this version of the policy interface.

    Raises:
        PolicyLoadError: If it is not.
    """
    if policy.api_version != API_VERSION:
        raise PolicyLoadError(
            f"it is written for version {policy.api_version!r} of the policy interface, "
            f"and this is version {API_VERSION}; install matching versions"
        )


def check_dataclass(policy: type[Policy]) -> None:
    """See that its parameters can be set.

    Without the decorator, new fields would be class attributes that nobody can set.

    Raises:
        PolicyLoadError: If it lacks the decorator.
    """
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


def check_declarations(policy: type[Policy]) -> None:
    """See that what it says of itself can be read.

    Raises:
        PolicyLoadError: Naming what cannot, and what it should be.
    """
    name, signals, presets = policy.__name__, policy.signals, policy.presets
    known = tuple(Signal)
    if not isinstance(signals, set | frozenset) or any(each not in known for each in signals):
        raise PolicyLoadError(
            f"signals of the class {name} should be a set of {', '.join(known)} "
            f"as members of vtoken_sdk.Signal, got {signals!r}"
        )
    if not isinstance(presets, Mapping) or not all(
        isinstance(each, Mapping) for each in presets.values()
    ):
        raise PolicyLoadError(
            f'presets of the class {name} should look like {{"paper": {{"sinks": 0}}}}, '
            f"got {presets!r}"
        )
    for field in dataclasses.fields(policy):
        if field.default_factory is not dataclasses.MISSING:
            try:
                field.default_factory()
            except (Exception, SystemExit) as error:
                raise PolicyLoadError(
                    f"the default of {field.name} of the class {name} cannot be made: "
                    f"{_describe(error)}"
                ) from error


def check_answers(policy: type[Policy]) -> None:
    """See that it has the method that is asked which tokens go.

    Raises:
        PolicyLoadError: Naming the method to write.
    """
    scores = _has(policy, "score", ScoringPolicy)
    selects = _has(policy, "select", Policy)
    if scores if issubclass(policy, ScoringPolicy) else selects:
        return
    name = policy.__name__
    if scores:
        problem = "has score(), which is never asked: derive it from ScoringPolicy"
    elif selects:
        problem = "has select(), which a ScoringPolicy is never asked for: derive it from Policy"
    elif issubclass(policy, ScoringPolicy):
        problem = "needs a method score(self, seq) that rates the live tokens"
    else:
        problem = (
            "needs a method select(self, seq, count) that chooses the tokens to evict; or derive "
            "it from ScoringPolicy and write score(self, seq)"
        )
    raise PolicyLoadError(f"the class {name} {problem}")


def _has(policy: type[Policy], method: str, base: type[Policy]) -> bool:
    """Whether a class has a method of its own, not just the one of ``base`` that raises."""
    found = getattr(policy, method, None)
    return callable(found) and found is not getattr(base, method)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
