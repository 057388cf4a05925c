"""The policy a user wants checked: where it comes from, and each step of loading it."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk import loading, registry
from vtoken_sdk.errors import MissingClassError, PolicyFamilyError

if TYPE_CHECKING:
    from vtoken_sdk.policy import Policy
    from vtoken_sdk.registry import PolicyInfo


class Subject:
    """One policy, by name or by file. Nothing is imported before it is asked for.

    Args:
        name: The name of an installed policy, ``NAME:VARIANT``, or ``path/to/file.py:Class``.

    Attributes:
        infos: What installed packages announce under that name; nothing for a file.

    Raises:
        UnknownPolicyError: If nothing of that name is installed.
        PolicyLoadError: If there is no such file.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.infos: list[PolicyInfo] = []
        if loading.is_file_reference(name):
            self._file = loading.FileReference.parse(name)
        else:
            self.infos = registry.announced(name.partition(":")[0])

    @property
    def installed(self) -> bool:
        """Whether it is part of a package, not just a file."""
        return bool(self.infos)

    @property
    def info(self) -> PolicyInfo:
        """The first announcement."""
        return self.infos[0]

    @property
    def short_name(self) -> str:
        """A name that can be part of a file's name; files called alike have different ones."""
        if self.installed:
            return self.name
        path = self._file.path
        digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]
        return f"{path.stem}-{self._file.class_name}-{digest}"

    @cached_property
    def module(self) -> Any:
        """The module, imported.

        Raises:
            PolicyLoadError: If that fails.
        """
        if self.installed:
            return loading.import_reference(self.info.module)
        return loading.import_file(self._file.path)

    @cached_property
    def announced_class(self) -> Any:
        """What the hook returns, or the class in the file; it may be anything.

        Raises:
            PolicyLoadError: If there is none.
        """
        if self.installed:
            try:
                return loading.ask_hook(self.module, self.info.module, self.name)
            except PolicyFamilyError as error:
                raise PolicyFamilyError(f"policy {self.name!r}: {error}") from None
        try:
            return self._file.class_in(self.module)
        except MissingClassError as error:
            raise MissingClassError(f"policy file {self._file.path}: {error}") from None

    @property
    def policy(self) -> type[Policy]:
        """The class; checks that need it come after those that establish that it is one."""
        return self.announced_class  # type: ignore[no-any-return]

    @property
    def source(self) -> Path | None:
        """The file it is written in."""
        file = getattr(self.module, "__file__", None)
        return Path(file) if file else None
