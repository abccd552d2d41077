"""Block traces, simulated caches and queueing models."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__version__: str
OPS: tuple[str, ...]

Size = int | str
"""Bytes, or text such as "64KiB" or "10G"."""

class CachePolicy(Protocol):
    """What a policy of one's own has to do. Blocks are dense numbers from 0."""

    def hit(self, block: int) -> Any: ...
    def insert(self, block: int) -> Any: ...
    def evict(self) -> int: ...

Policy = str | Callable[[int], CachePolicy]

class Request:
    """One request. Times in nanoseconds, places and lengths in bytes."""

    time: int
    client: int
    disk: int
    op: str
    offset: int
    length: int
    latency: int
    flags: int

class Trace:
    """A trace. Each pass over it reads its file anew."""

    @staticmethod
    def from_columns(
        offset: NDArray[np.uint64],
        length: NDArray[np.uint32],
        *,
        op: NDArray[np.uint8] | None = None,
        time: NDArray[np.uint64] | None = None,
        client: NDArray[np.uint32] | None = None,
        disk: NDArray[np.uint32] | None = None,
        latency: NDArray[np.uint32] | None = None,
    ) -> Trace:
        """A trace of columns, rows in order of time. Without ``op`` all are reads (see ``OPS``)."""
    @property
    def clients(self) -> list[str]:
        """Names of the clients, as far as the file says them ahead."""
    @property
    def disks(self) -> list[str]: ...
    @property
    def requests(self) -> int | None:
        """How many there are, when the format knows it ahead."""
    @property
    def has_times(self) -> bool:
        """Whether times were recorded; when not, they count requests."""
    @property
    def has_latencies(self) -> bool: ...
    @property
    def has_ops(self) -> bool: ...
    @property
    def notes(self) -> str: ...
    def __iter__(self) -> Iterator[Request]: ...
    def columns(self, limit: int | None = None) -> dict[str, NDArray[Any]]:
        """time, client, disk, op, offset, length, latency, flags; or of the first ``limit`` requests."""
    def batches(self) -> Iterator[dict[str, NDArray[Any]]]:
        """The same columns, at most 65,536 requests at a time."""
    def save(self, path: str | os.PathLike[str], *, format: str | None = None, unit: int = 4096) -> int:
        """Writes the trace in the format that the name asks for, else Sojourn's own; how many records."""
    def load(
        self,
        *,
        block: Size | None = None,
        writes: bool = False,
        share: str = "base",
        client: str | None = None,
        one_in: int = 1,
    ) -> Load:
        """The trace as a server's cache sees it.

        ``block``: bytes of a cached block (4K). ``writes``: cache writes too. ``share``: "base",
        disks share the image that the trace says they were made from, until they write; "disk", a disk
        is the same for all its clients; "image", until a client writes a block; "private", never.
        ``client``: a cache in front of each client, as "1M" or "fmpq:16M". ``one_in``: keep one
        block of so many; sizes of caches stay those of the whole, of which a part as small is simulated.
        """

class Load:
    """References to blocks with dense numbers."""

    def __len__(self) -> int: ...
    @property
    def blocks(self) -> int:
        """Distinct blocks."""
    @property
    def block(self) -> int:
        """Bytes of a block."""
    @property
    def requests(self) -> int:
        """Requests that were read."""
    @property
    def one_in(self) -> int: ...
    def ids(self) -> NDArray[np.uint32]:
        """The block of each reference."""
    def writes(self) -> NDArray[np.bool_]:
        """Whether each reference is a write."""

class Outcome:
    """What came of a policy at a size. All blocks are of one size: the hit ratio is that of bytes too."""

    policy: str
    size: int
    hits: int
    misses: int
    cold: int
    reads: int
    read_hits: int
    hit_ratio: float
    hits_by_distance: NDArray[np.uint64]
    misses_by_distance: NDArray[np.uint64]

class Curve:
    """LRU at every size."""

    references: int
    full: int
    def hit_ratios(self, sizes: Size | Sequence[Size]) -> NDArray[np.float64]: ...

class Advice:
    """The best policy and what it is expected to do.

    ``error``, also the last of each candidate: half of the interval that holds the hit ratio with 95 %, by
    the differences between samples; 0 when nothing was sampled. ``saved``: part of LRU's misses.
    """

    policy: str
    hit_ratio: float
    error: float
    saved: float
    candidates: list[tuple[str, float, float]]

class Solution:
    """Row ``n - 1`` is for ``n`` clients; columns of the matrices are ``centres``. Seconds."""

    centres: list[str]
    clients: NDArray[np.uint32]
    throughput: NDArray[np.float64]
    response: NDArray[np.float64]
    utilisation: NDArray[np.float64]
    queue: NDArray[np.float64]
    residence: NDArray[np.float64]
    bottleneck: str | None
    knee: float | None

def open(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    unit: int = 4096,
    sort: bool = False,
    shift: int = 0,
) -> Trace:
    """Opens a trace of any format, compressed or not.

    ``unit``: bytes of a block where a format numbers blocks. ``sort``: put requests in order of
    time. ``shift``: bytes added to each offset.
    """

def policies() -> list[str]:
    """Names of all policies."""

def simulate(
    source: Trace | Load,
    policy: Policy | Sequence[Policy],
    size: Size | Sequence[Size],
    *,
    distances: bool = False,
    **options: Any,
) -> list[Outcome]:
    """Simulates policies at sizes; a list of outcomes, policy by policy."""

def curve(source: Trace | Load, **options: Any) -> Curve:
    """The hit ratio of LRU at every size, in one pass."""

def tune(
    source: Trace | Load,
    size: Size,
    *,
    policy: str | Sequence[str] | None = None,
    one_in: int = 64,
    samples: int = 4,
    **options: Any,
) -> Advice:
    """The best policy for a cache of ``size``, by miniature simulation."""

def solve(
    demands: Mapping[str, float | tuple[float, int]],
    clients: int,
    *,
    delays: Mapping[str, float] | None = None,
    think: float = 0.0,
) -> Solution:
    """Solves a closed queueing network exactly, for 1 to ``clients`` clients."""
