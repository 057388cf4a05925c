"""What a server is asked: lengths, arrival times and texts, from real data or drawn at random."""

from vtoken_sdk.workloads.load import load_workload
from vtoken_sdk.workloads.request import Workload, WorkloadRequest

__all__ = ["Workload", "WorkloadRequest", "load_workload"]
