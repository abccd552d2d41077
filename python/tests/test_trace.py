"""Traces as columns."""

import csv
import io

import numpy as np
import pytest
from conftest import columns

import sojourn


def test_columns_come_back_as_they_were_given(trace):
    back = trace.columns()
    for name, values in columns().items():
        assert np.array_equal(back[name], values), name
    assert not back["latency"].any()


def test_a_saved_trace_is_the_same_trace(trace, tmp_path):
    path = tmp_path / "day.sjt"
    assert trace.save(path) == 20_000
    again = sojourn.open(path)
    assert again.requests == 20_000 and again.has_times and not again.has_latencies
    before, after = trace.columns(), again.columns()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_batches_and_requests_are_the_columns_in_parts(trace, tmp_path):
    trace.save(tmp_path / "day.sjt")
    opened = sojourn.open(tmp_path / "day.sjt")
    whole = opened.columns()
    parts = list(opened.batches())
    assert len(parts) > 1
    for name, values in whole.items():
        assert np.array_equal(np.concatenate([part[name] for part in parts]), values), name
    for row, request in enumerate(opened):
        assert (request.offset, request.length) == (whole["offset"][row], whole["length"][row])
        assert request.op == sojourn.OPS[whole["op"][row]]
    assert row == len(whole["time"]) - 1
    # Another pass begins anew.
    assert next(iter(opened)).offset == whole["offset"][0]
    assert len(opened.columns(limit=7)["time"]) == 7


def test_columns_are_what_the_command_line_converts(trace, tmp_path, cli):
    path = tmp_path / "day.sjt"
    trace.save(path)
    cli("trace", "convert", str(path), str(tmp_path / "day.csv"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "day.csv").read_text())))
    got = sojourn.open(path).columns()
    assert len(rows) == len(got["time"])
    assert [int(row["offset"]) for row in rows] == got["offset"].tolist()
    assert [int(row["length"]) for row in rows] == got["length"].tolist()
    # And the CSV is read as the same requests.
    back = sojourn.open(tmp_path / "day.csv").columns()
    assert np.array_equal(back["offset"], got["offset"]) and np.array_equal(back["op"], got["op"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": np.full(2, 9, np.uint8)}, "row 0: operation 9"),
        ({"time": np.array([5, 4], np.uint64)}, "row 1: its time"),
        ({"offset": np.array([0, 2**64 - 1], np.uint64)}, "row 1: it ends beyond"),
        ({"client": np.full(2, 2**20, np.uint32)}, "row 0: clients"),
        ({"client": np.zeros(3, np.uint32)}, "client has 3 rows"),
    ],
)
def test_columns_that_are_no_trace_are_refused_with_their_row(change, message):
    given = {"offset": np.zeros(2, np.uint64), "length": np.ones(2, np.uint32), **change}
    with pytest.raises(ValueError, match=message):
        sojourn.Trace.from_columns(**given)


def test_what_is_no_trace_is_an_exception_that_says_so(trace, tmp_path):
    with pytest.raises(FileNotFoundError, match="none.sjt"):
        sojourn.open(tmp_path / "none.sjt")
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(ValueError, match="noise"):
        sojourn.open(tmp_path / "noise").columns()
    trace.save(tmp_path / "day.sjt")
    whole = (tmp_path / "day.sjt").read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    (tmp_path / "damaged.sjt").write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged.sjt"):
        sojourn.open(tmp_path / "damaged.sjt").columns()
    with pytest.raises(ValueError, match="format"):
        sojourn.open(tmp_path / "day.sjt", format="punched-cards")
