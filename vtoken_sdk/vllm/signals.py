"""Where the signals come from in vLLM: the KV caches, and a tap on the attention layers.

No attention backend is replaced: each scored layer's ``impl.forward`` runs as it is, and afterwards
the queries it was given are scored against the cache. vLLM calls it inside an opaque operator, so
compiled models call it too.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.attention import decode_mass
from vtoken_sdk.errors import UnsupportedError
from vtoken_sdk.keys import LayerKeys, ScatteredKeys, StridedKeys
from vtoken_sdk.policy import Signal
from vtoken_sdk.recorder import MassRecorder, Recorder, ScoredLayer, Step, WindowRecorder
from vtoken_sdk.signals import SignalSource
from vtoken_sdk.vllm.compat import check_graphs
from vtoken_sdk.vllm.layout import probe_cpu_offsets, regular_view, written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from vtoken_sdk.policy import Policy
    from vtoken_sdk.ranks import Ranks
    from vtoken_sdk.recorder import DecodeMass

MOST_THREADS = 2
"""The compiled loop has one thread and is about twice as fast there as torch, whose copies and
products use all of them."""


class SignalTaps:
    """Feeds a recorder from the attention layers of a model runner.

    Args:
        runner: vLLM's, with its KV cache in place.
        policy: Whose signals are wanted.
        ranks: Those that hold the other heads, if any.

    Attributes:
        source: What the policy's views read, or None where it declares no signal.
    """

    def __init__(self, runner: Any, policy: Policy | None, ranks: Ranks | None = None) -> None:
        self.source: SignalSource | None = None
        self._recorder: Recorder | None = None
        self._expected: tuple[int, ...] = ()
        self._seen: list[int] = []
        self._open = False
        if policy is None or not policy.signals:
            return
        names = layer_names(runner)
        keys = tuple(find_keys(runner, names))
        if Signal.ATTENTION in policy.signals:
            self._recorder = self._tap(runner, policy, names, keys)
        self.source = SignalSource(keys, self._recorder, ranks)

    @property
    def active(self) -> bool:
        """Whether steps have to be announced."""
        return self._recorder is not None

    def _tap(
        self, runner: Any, policy: Policy, names: Sequence[str], keys: Sequence[LayerKeys]
    ) -> Recorder:
        check_graphs(runner.vllm_config, policy)
        chosen = scored_layers(policy, len(names))
        context = runner.compilation_config.static_forward_context
        impls = [context[names[layer]].impl for layer in chosen]
        for impl in impls:
            check_impl(impl)
        dtype = runner.vllm_config.model_config.dtype
        layers = [
            ScoredLayer(keys[layer], float(impl.scale), impl.num_heads, dtype)
            for layer, impl in zip(chosen, impls, strict=True)
        ]
        for place, impl in enumerate(impls):
            impl.forward = self._tapped(impl.forward, place)
        self._expected = tuple(range(len(layers)))
        window = policy.attention_window()
        if window is None:
            return MassRecorder(layers, runner.device, choose_decode(layers))
        return WindowRecorder(layers, window, runner.device)

    def _tapped(self, forward: Any, place: int) -> Any:
        def tapped(layer: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
            result = forward(layer, query, *args, **kwargs)
            self._seen.append(place)
            if self._open:  # closed in warm-up and profiling runs, whose inputs are made up
                assert self._recorder is not None
                self._recorder.record(place, query)
            return result

        return tapped

    def begin(self, step: Step) -> None:
        """Announce a step, right before the model runs."""
        assert self._recorder is not None
        self._recorder.begin(step)
        self._seen.clear()
        self._open = True

    def end(self) -> None:
        """Close the step, if there was one.

        Raises:
            UnsupportedError: If a scored layer did not run through its tap: the signal would be
                wrong.
        """
        if not self._open:
            return
        assert self._recorder is not None
        self._open = False
        self._check_seen()
        with torch.inference_mode():  # like the model's run, in which its tensors were made
            self._recorder.end()

    def try_out(self, run: Callable[[], object]) -> None:
        """See that a model run goes through every tap; at start-up, with made-up inputs.

        Raises:
            UnsupportedError: If it does not.
        """
        if self.active:
            self._seen.clear()
            run()
            self._check_seen()

    def _check_seen(self) -> None:
        if tuple(self._seen) != self._expected:
            raise UnsupportedError(
                f"attention was seen in the scored layers {self._seen}, but should be in "
                f"{list(self._expected)}: something in this vLLM bypasses the attention layers, "
                "such as full CUDA graphs; set compilation_config.cudagraph_mode to PIECEWISE"
            )


def choose_decode(layers: Sequence[ScoredLayer]) -> DecodeMass:
    """The fastest way to score decoding sequences here: a compiled loop, or torch."""
    if find_spec("numba") is None or torch.get_num_threads() > MOST_THREADS:
        return decode_mass
    from vtoken_sdk.attention_numba import NumbaDecode, fits

    if not all(fits(layer.keys) for layer in layers):
        return decode_mass
    return NumbaDecode(layers[0].keys, layers[0].num_heads)


def layer_names(runner: Any) -> list[str]:
    """Names of the attention layers in the model's order."""
    from vllm.model_executor.models.utils import extract_layer_index

    (group,) = runner.kv_cache_config.kv_cache_groups
    return sorted(group.layer_names, key=extract_layer_index)


def find_keys(runner: Any, names: Sequence[str]) -> list[LayerKeys]:
    """The keys of each layer.

    Raises:
        UnsupportedError: If the backend divides the engine's blocks into smaller ones.
    """
    context = runner.compilation_config.static_forward_context
    caches = [context[name].kv_cache for name in names]
    if caches[0].shape != runner.kv_caches[0].shape:
        raise UnsupportedError(
            "signals need blocks that the attention backend takes whole: "
            f"{tuple(runner.kv_caches[0].shape)} became {tuple(caches[0].shape)}; "
            "use another block_size"
        )
    (group,) = runner.attn_groups[0]
    if group.backend.get_name() != "CPU_ATTN":
        size = context[names[0]].impl.head_size
        return [StridedKeys(cache.transpose(1, 2)[..., :size]) for cache in caches]
    offsets = probe_cpu_offsets(caches[0], context[names[0]].isa, written(runner))[:, 0]
    return [_cpu_keys(cache, offsets) for cache in caches]


def _cpu_keys(cache: Tensor, offsets: Tensor) -> LayerKeys:
    view = regular_view(cache[None], offsets)
    if view is not None:
        return StridedKeys(view[0])
    return ScatteredKeys(cache.view(-1), offsets, cache[0].numel())


def scored_layers(policy: Policy, num_layers: int) -> list[int]:
    """The layers the policy wants scored, checked.

    Raises:
        UnsupportedError: If there are none, or some do not exist.
    """
    chosen = sorted(set(policy.scored_layers(num_layers)))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < num_layers:
        raise UnsupportedError(
            f"policy {policy.name!r} scores layers {chosen}, but this model has {num_layers}: "
            f"choose some of 0 to {num_layers - 1}"
        )
    return chosen


def check_impl(impl: Any) -> None:
    """Refuse layers whose probabilities are not softmax(q k^T * scale).

    Raises:
        UnsupportedError: Naming what is different about them.
    """
    for feature in ("logits_soft_cap", "alibi_slopes", "sinks"):
        value = getattr(impl, feature, None)
        if isinstance(value, torch.Tensor) or value:
            raise UnsupportedError(
                f"the attention signal does not know {feature}; use a policy without it"
            )
