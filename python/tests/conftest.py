"""Traces to test with."""

import os
import pathlib
import subprocess

import numpy as np
import pytest

import sojourn

TOP = pathlib.Path(__file__).resolve().parents[2]


def columns(rows=20_000, blocks=2_000, seed=1):
    """Skewed reads and some writes, of three clients."""
    random = np.random.default_rng(seed)
    block = np.minimum(random.zipf(1.2, rows), blocks) - 1
    return {
        "offset": (block * 4096).astype(np.uint64),
        "length": (4096 * random.integers(1, 4, rows)).astype(np.uint32),
        "op": (random.random(rows) < 0.2).astype(np.uint8),
        "time": np.cumsum(random.integers(0, 100_000, rows)).astype(np.uint64),
        "client": random.integers(0, 3, rows).astype(np.uint32),
    }


@pytest.fixture(name="trace")
def fixture_trace():
    """A trace in memory."""
    return sojourn.Trace.from_columns(**columns())


@pytest.fixture(name="cli")
def fixture_cli():
    """Runs the command line; skips without a binary."""
    binary = os.environ.get("SOJOURN", TOP / "target/debug/sojourn")
    if not os.access(binary, os.X_OK):
        pytest.skip(f"{binary} is not there: build it, or name one in SOJOURN")

    def run(*arguments):
        return subprocess.run([binary, *arguments], check=True, capture_output=True, text=True).stdout

    return run
