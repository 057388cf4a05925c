"""The conformance kit."""

from vtoken_sdk.testing.views import make_view, scores, victims

__all__ = ["make_view", "scores", "victims"]
