"""Fails on every call that would make the host wait for a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAITING_OPS = {
    aten._local_scalar_dense.default: "a tensor's value as a Python number",
    aten.nonzero.default: "a shape that depends on values (nonzero)",
    aten.masked_select.default: "a shape that depends on values (masked_select)",
    aten.equal.default: "a comparison that is answered on the host (equal)",
    aten._unique2.default: "a shape that depends on values (unique)",
    aten.unique_dim.default: "a shape that depends on values (unique)",
}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
WAITING_METHODS = {
    torch.Tensor.cpu: "a copy to the host (cpu)",
    torch.Tensor.tolist: "a copy to the host (tolist)",
    torch.Tensor.numpy: "a copy to the host (numpy)",
    torch.Tensor.item: "a tensor's value as a Python number (item)",
}


class HostWaits(AssertionError):
    """A call would have made the host wait."""


class _Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITING_OPS:
            raise HostWaits(f"{func}: {WAITING_OPS[func]}")
        if func in INDEXING and any(_is_mask(index) for index in args[1]):
            raise HostWaits(f"{func}: indexing with a mask")
        if func is aten.repeat_interleave.Tensor and (kwargs or {}).get("output_size") is None:
            raise HostWaits(f"{func}: a shape that depends on values (no output_size)")
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    """Calls that a CPU tensor answers without any operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITING_METHODS:
            raise HostWaits(WAITING_METHODS[func])
        if func is torch.Tensor.to and _goes_to_host(args[1:], kwargs or {}):
            raise HostWaits("a copy to the host (to)")
        return func(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _goes_to_host(args: Any, kwargs: Any) -> bool:
    targets = [*args[:1], kwargs.get("device")]
    return any(t == "cpu" or t == torch.device("cpu") for t in targets if t is not None)


class NoSync:
    """``with NoSync(): ...`` raises :class:`HostWaits` at the call that waits.

    It works on CPU tensors, where nothing really waits: the calls are what counts. The upload of
    host numbers goes the other way and is fine.
    """

    def __enter__(self) -> None:
        self._modes = (_Ops(), _Methods())
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *error: object) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
