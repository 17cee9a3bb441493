"""What the NVML child tells of the GPUs when it is asked: processes, links, the newest CUDA that will run.

All of it changes seldom and costs more than a reading (a GPU's processes 5 ms), so nobody asks every second.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

ANCESTORS = {
    0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system",
}  # fmt: skip
"""NVML's number for the closest thing that two GPUs have in common -> the end of its name."""

P2P_READ, P2P_NVLINK = 0, 2

MAX_LINKS = 36
"""NVLinks of one GPU that are looked at."""
MAX_SURVEYED = 16
MAX_PROCESSES = 32

Json = Dict[str, Any]


def read(nvml: Any, handles: Sequence[Tuple[int, Any]], fatal: Sequence[int]) -> Json:
    """Look at the GPUs with these indices and handles.

    `cuda` is a version as in "12.8"; `processes` have `gpu`, `pid` (the machine's, not the container's) and
    `memory_bytes`; `links` have for each pair `a` and `b` the `path` over PCIe, how many `nvlinks` there are
    and whether memory can be read directly, `p2p`. What the driver does not tell is None. Raises NVMLError
    when its code is among `fatal`.
    """
    return _Survey(nvml, handles[:MAX_SURVEYED], fatal).read()


class _Survey:
    def __init__(self, nvml: Any, handles: Sequence[Tuple[int, Any]], fatal: Sequence[int]) -> None:
        self._nvml = nvml
        self._handles = dict(handles)
        self._fatal = fatal

    def read(self) -> Json:
        cuda = self._ask(self._nvml.nvmlSystemGetCudaDriverVersion_v2)
        ends = {index: self._ends(handle) for index, handle in self._handles.items()}
        return {
            "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "processes": [process for index in self._handles for process in self._processes(index)],
            "links": [self._link(a, b, ends) for a in self._handles for b in self._handles if a < b],
        }

    def _processes(self, index: int) -> List[Json]:
        nvml = self._nvml
        newest, older = (
            nvml.nvmlDeviceGetComputeRunningProcesses_v3,
            nvml.nvmlDeviceGetComputeRunningProcesses_v2,
        )
        for question in (newest, older):  # an old driver lacks the newest
            found = self._ask(question, self._handles[index])
            if found is not None:
                return [
                    {"gpu": index, "pid": each.pid, "memory_bytes": each.usedGpuMemory}
                    for each in found[:MAX_PROCESSES]
                ]
        return []

    def _ends(self, handle: Any) -> List[Any]:
        """What is at the other end of each NVLink that is up: a bus id, or None where that is not told."""
        ends = []
        for link in range(MAX_LINKS):
            up = self._ask(self._nvml.nvmlDeviceGetNvLinkState, handle, link)
            if up is None:
                break  # it has no more of them
            if up:
                there = self._ask(self._nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
                ends.append(None if there is None else there.busId)
        return ends

    def _link(self, a: int, b: int, ends: Dict[int, List[Any]]) -> Json:
        nvml, pair = self._nvml, (self._handles[a], self._handles[b])
        ancestor = self._ask(nvml.nvmlDeviceGetTopologyCommonAncestor, *pair)
        reads = self._ask(nvml.nvmlDeviceGetP2PStatus, *pair, P2P_READ)
        nvlinks = 0
        if ends[a] and ends[b]:
            there = self._ask(nvml.nvmlDeviceGetPciInfo, pair[1])
            nvlinks = 0 if there is None else ends[a].count(there.busId)
            if not nvlinks and self._ask(nvml.nvmlDeviceGetP2PStatus, *pair, P2P_NVLINK) == 0:
                nvlinks = min(len(ends[a]), len(ends[b]))  # all of them lead to a switch
        return {
            "a": a,
            "b": b,
            "path": ANCESTORS.get(ancestor, "unknown"),
            "nvlinks": nvlinks,
            "p2p": None if reads is None else reads == 0,
        }

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in self._fatal:
                raise
            return None
