"""Block traces, simulated caches and queueing models.

>>> import sojourn
>>> trace = sojourn.open("day.trace")                      # any format, guessed
>>> columns = trace.columns()                              # numpy arrays
>>> load = trace.load(block="4K", client="1M")             # behind 1 MiB of cache at each client
>>> sojourn.simulate(load, ["lru", "lirs", "opt"], ["64M", "256M"])
>>> sojourn.curve(load).hit_ratios(["64M", "256M"])        # LRU at any size
>>> sojourn.tune(load, "256M").policy                      # which policy would be best
>>> sojourn.solve({"cpu": 0.1e-3, "disk": 0.7e-3}, 50)     # exact mean value analysis
"""

from ._sojourn import (
    Advice,
    Curve,
    Load,
    Outcome,
    Request,
    Solution,
    Trace,
    __version__,
    open,
    policies,
)
from . import _sojourn

__all__ = [
    "OPS",
    "Advice",
    "Curve",
    "Load",
    "Outcome",
    "Request",
    "Solution",
    "Trace",
    "__version__",
    "curve",
    "open",
    "policies",
    "simulate",
    "solve",
    "tune",
]

#: What the numbers in the column ``op`` mean.
OPS = ("read", "write", "flush", "trim", "zero")


def _load(source, options):
    """A load as it is, or that of a trace."""
    if isinstance(source, Load):
        if options:
            raise TypeError(f"{', '.join(options)}: these belong to Trace.load(); this load is made already")
        return source
    return source.load(**options)


def simulate(source, policy, size, *, distances=False, **options):
    """Simulates policies at sizes; a list of outcomes, policy by policy.

    ``source`` is a trace or a load; ``options`` are those of :meth:`Trace.load`. ``policy`` is a
    name with parameters (see :func:`policies`, ``"opt"`` is the best that any could do), or a class
    of yours: called with the number of blocks, it makes an object with ``hit(block)``,
    ``insert(block)`` and ``evict()``, which returns the block that leaves. ``size`` is in bytes or
    text such as ``"64M"``; of a load that is a sample (``one_in``), it is still what the whole would have. Either may
    be a list.
    """
    return _sojourn.simulate(_load(source, options), policy, size, distances=distances)


def curve(source, **options):
    """The hit ratio of LRU at every size, in one pass; with ``one_in=100`` from a sample (SHARDS)."""
    return _sojourn.curve(_load(source, options))


def tune(source, size, *, policy=None, one_in=64, samples=4, **options):
    """The best policy for a cache of ``size``, by miniature simulation on samples of the blocks."""
    return _sojourn.tune(_load(source, options), size, policy=policy, one_in=one_in, samples=samples)


def solve(demands, clients, *, delays=None, think=0.0):
    """Solves a closed queueing network exactly, for 1 to ``clients`` clients.

    ``demands`` maps the name of a centre to the seconds of service that a request takes there, or
    to such seconds and a number of servers; ``delays`` are centres where nobody waits; ``think`` is
    the time between an answer and the next request.
    """
    delays = None if delays is None else list(delays.items())
    return _sojourn.solve(list(demands.items()), clients, delays=delays, think=think)
