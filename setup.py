"""The list of packages; everything else is declared in pyproject.toml.

``policies/`` and ``templates/`` are installed under other names than their folders have, which the
declarative ``packages.find`` cannot say. Found packages come from a search, so that a new one under
``vtoken_sdk/`` cannot be forgotten.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["vtoken_sdk", "vtoken_sdk.*"]),
        "vtoken_sdk.templates",
        "vtoken_policies",
    ]
)
