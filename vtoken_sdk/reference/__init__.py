"""A small exact paged engine on the CPU: the model world of the conformance kit and of tests."""

from vtoken_sdk.reference.engine import ReferenceEngine
from vtoken_sdk.reference.memory import Relocation
from vtoken_sdk.reference.model import ToyModel, dense_logits
from vtoken_sdk.reference.pool import OutOfBlocksError
from vtoken_sdk.reference.server import Job, Server, Triggers
from vtoken_sdk.reference.snapshot import EngineSnapshot, SequenceSnapshot

__all__ = [
    "EngineSnapshot",
    "Job",
    "OutOfBlocksError",
    "ReferenceEngine",
    "Relocation",
    "SequenceSnapshot",
    "Server",
    "ToyModel",
    "Triggers",
    "dense_logits",
]
