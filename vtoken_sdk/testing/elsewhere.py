"""A device that is not there: real numbers on the CPU, with the rules of an accelerator.

Tensors of a view are marked as being elsewhere. Whatever is computed from them is elsewhere, too;
to mix them with tensors of the CPU is an error, as it is on a GPU, and to look at their values is
noted, because a GPU's whole queue of work has to finish first.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

DEVICE = torch.device("cuda", 0)
_MARK = "_vtoken_elsewhere"

# Calls whose result has a size that only the device knows: it stays there, but is waited for.
_STAYS = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"}
_WAITS = _STAYS | {
    "item", "tolist", "numpy", "cpu", "equal", "allclose", "is_nonzero", "__bool__", "__int__",
    "__float__", "__index__", "__contains__", "__array__", "__format__", "__repr__",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that waits for the device.

    Attributes:
        call: Its name.
        where: File and line of the caller.
    """

    call: str
    where: str


class WrongDevice(RuntimeError):
    """Tensors of two devices met, as torch would say on a machine that has both."""


class Elsewhere(TorchFunctionMode):
    """While it is entered, every call of torch is watched.

    Attributes:
        waits: Calls that waited for the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Wait] = []
        self._aside = False

    def put(self, tensor: Tensor) -> Tensor:
        """Mark a tensor as being elsewhere; a fresh object, so no other place sees the mark."""
        fresh = tensor.detach()
        setattr(fresh, _MARK, True)
        return fresh

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While this lasts nothing is watched."""
        before, self._aside = self._aside, True
        try:
            yield
        finally:
            self._aside = before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._aside:
            return func(*args, **kwargs)
        with self.aside():
            return self._watched(func, args, kwargs)

    def _watched(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = _name(func)
        tensors = [
            leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)
        ]
        far = [tensor for tensor in tensors if is_elsewhere(tensor)]
        if name == "device" and far:
            return DEVICE
        if name in {"is_cuda", "is_cpu"} and far:
            return name == "is_cuda"
        target = _target(name, args, kwargs)
        self._note_wait(name, args, far, target)
        self._refuse_mixing(name, args, tensors, far)
        args, kwargs = tree_map(_without_device, (args, kwargs))
        result = func(*args, **kwargs)
        here = target == "cpu" or (target is None and not far) or name in _WAITS - _STAYS
        return tree_map(_unmarked if here else _marked, result)

    def _note_wait(self, name: str, args: Any, far: list[Tensor], target: str | None) -> None:
        if not far:
            return
        masked = name == "__getitem__" and _has_mask(args[1])
        one_arg_where = name == "where" and len(args) == 1
        if name in _WAITS or masked or one_arg_where or target == "cpu":
            said = "tensor[mask]" if masked else f"{name.strip('_')}()"
            self.waits.append(Wait(said, caller()))

    def _refuse_mixing(
        self, name: str, args: Any, tensors: list[Tensor], far: list[Tensor]
    ) -> None:
        """Scalars may come from the CPU, and so may an index."""
        if not far or name in {"to", "copy_", "__set__"}:
            return
        near = [t for t in tensors if not is_elsewhere(t) and t.dim() > 0]
        if name in {"__getitem__", "__setitem__"} and is_elsewhere(args[0]):
            value = args[2] if len(args) > 2 else None
            near = [t for t in near if t is value]
        if near:
            raise WrongDevice(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                f"{DEVICE} and cpu! ({name.strip('_')}() at {caller()})"
            )


def is_elsewhere(tensor: Tensor) -> bool:
    """Whether a tensor is marked."""
    return bool(getattr(tensor, _MARK, False))


def caller() -> str:
    """File and line outside of torch and this module, innermost first."""
    frame = sys._getframe(1)
    while frame and ("/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame else "?"


def _name(func: Any) -> str:
    name = getattr(func, "__name__", "")
    if name in {"__get__", "__set__"}:
        owner = getattr(func, "__self__", None)
        return getattr(owner, "__name__", name)
    return str(name)


def _target(name: str, args: Any, kwargs: Any) -> str | None:
    """The device a call names: ``cpu``, ``elsewhere`` or None."""
    named = [kwargs["device"]] if "device" in kwargs else []
    if name in {"to", "new_tensor"}:
        named += [a for a in args[1:] if isinstance(a, torch.device | str)]
        named += [DEVICE for a in args[1:2] if isinstance(a, torch.Tensor) and is_elsewhere(a)]
    if name == "cuda":
        return "elsewhere"
    if name == "cpu":
        return "cpu"
    devices = [d for d in named if d is not None]
    if not devices:
        return None
    return "cpu" if torch.device(devices[0]).type == "cpu" else "elsewhere"


def _without_device(leaf: Any) -> Any:
    if isinstance(leaf, torch.device) and leaf.type == DEVICE.type:
        return torch.device("cpu")
    if isinstance(leaf, str) and leaf.split(":")[0] == DEVICE.type:
        return "cpu"
    return leaf


def _marked(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        setattr(leaf, _MARK, True)
    return leaf


def _unmarked(leaf: Any) -> Any:
    """A tensor of the CPU; ``cpu()`` returns its argument where there is nothing to copy."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) and is_elsewhere(leaf) else leaf


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(p, torch.Tensor) and p.dtype in {torch.bool, torch.uint8} for p in parts)
