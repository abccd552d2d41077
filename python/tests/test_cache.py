"""Simulated caches, policies of one's own, curves and tuning."""

import json
from collections import OrderedDict

import numpy as np
import pytest

import sojourn

SIZES = [64 * 4096, 256 * 4096, "4M"]


class Lru:
    """The least recently used block leaves."""

    def __init__(self, room):
        self.room = room
        self.order = OrderedDict()

    def hit(self, block):
        self.order.move_to_end(block)

    def insert(self, block):
        self.order[block] = None
        assert len(self.order) <= self.room

    def evict(self):
        return self.order.popitem(last=False)[0]


def test_a_policy_in_python_does_what_the_built_in_one_does(trace):
    load = trace.load(writes=True)
    theirs, ours = (sojourn.simulate(load, policy, SIZES, distances=True) for policy in (Lru, "lru"))
    assert [o.policy for o in theirs] == ["Lru"] * 3
    for own, built_in in zip(theirs, ours):
        assert (own.size, own.hits, own.misses, own.reads) == (
            built_in.size,
            built_in.hits,
            built_in.misses,
            built_in.reads,
        )
        assert own.read_hits == built_in.read_hits and own.cold == built_in.cold
        assert np.array_equal(own.hits_by_distance, built_in.hits_by_distance)
    assert ours[0].hits < ours[1].hits


def test_outcomes_are_those_of_the_command_line(trace, tmp_path, cli):
    trace.save(tmp_path / "day.sjt")
    opened = sojourn.open(tmp_path / "day.sjt")
    names = ["lru", "lirs", "s3fifo:small=0.2", "opt"]
    got = sojourn.simulate(opened, names, ["256K", "1M"], share="private", client="fmpq:64K")
    arguments = [part for name in names for part in ("--policy", name)]
    text = cli(
        "simulate", "cache", str(tmp_path / "day.sjt"), *arguments, "--size", "256K,1M",
        "--share", "private", "--client", "fmpq:64K", "--json",
    )  # fmt: skip
    rows = json.loads(text)["rows"]
    assert len(rows) == 8
    assert [(r["policy"], r["bytes"], r["hits"], r["misses"]) for r in rows] == [
        (o.policy, o.size, o.hits, o.misses) for o in got
    ]


def test_nothing_beats_the_policy_that_knows_the_future(trace):
    outcomes = sojourn.simulate(trace, sojourn.policies(), "512K")
    best = max(outcomes, key=lambda outcome: outcome.hits)
    assert best.hits == next(o for o in outcomes if o.policy == "opt").hits
    assert len(outcomes) == len(sojourn.policies()) > 10


def test_the_curve_is_lru_at_every_size(trace):
    curve = sojourn.curve(trace)
    simulated = [outcome.hit_ratio for outcome in sojourn.simulate(trace, "lru", SIZES)]
    assert np.allclose(curve.hit_ratios(SIZES), simulated, atol=1e-12)
    full = curve.hit_ratios([curve.full, 2 * curve.full])
    assert full[0] == full[1]


def test_tuning_names_a_policy_that_does_what_it_says(trace):
    load = trace.load()
    advice = sojourn.tune(load, "1M", one_in=1, samples=1)
    (outcome,) = sojourn.simulate(load, advice.policy, "1M")
    assert advice.hit_ratio == pytest.approx(outcome.hit_ratio, abs=1e-12)
    assert 0 <= advice.saved < 1
    ratios = [ratio for _, ratio, _ in advice.candidates]
    assert ratios == sorted(ratios, reverse=True)


def test_a_sample_stands_for_a_cache_of_the_whole_size(trace):
    whole, sample = trace.load(), trace.load(one_in=4)
    size = whole.blocks * 4096 // 2
    (all_of_it,) = sojourn.simulate(whole, "lru", size)
    (part,) = sojourn.simulate(sample, "lru", size)
    assert part.size == size
    assert part.hit_ratio == pytest.approx(all_of_it.hit_ratio, abs=0.1)
    # It would hold all of the sample.
    assert part.misses > part.cold
    advice = sojourn.tune(sample, size, policy="lru", one_in=1, samples=1)
    assert advice.hit_ratio == pytest.approx(part.hit_ratio, abs=1e-12)
    with pytest.raises(ValueError, match="one block in 4"):
        sojourn.simulate(sample, "lru", 2 * 4096)


def test_references_are_the_load_itself(trace):
    load = trace.load(writes=True, block="8K")
    columns = trace.columns()
    first, last = columns["offset"] // 8192, (columns["offset"] + columns["length"] - 1) // 8192
    blocks = [b for f, l in zip(first, last) for b in range(int(f), int(l) + 1)]
    _, dense = np.unique(blocks, return_inverse=True)
    ids = load.ids()
    assert len(load) == len(ids) == len(blocks) and load.blocks == dense.max() + 1
    # The same partition into blocks, whatever the numbers.
    assert len(set(zip(ids.tolist(), dense.tolist()))) == load.blocks
    assert load.writes().sum() == sum((last - first + 1)[columns["op"] == 1])


class Broken(Lru):
    """Names a block that is not there."""

    def evict(self):
        return 2**31


class Failing(Lru):
    """Fails."""

    def hit(self, block):
        raise KeyError("no such block")


def test_a_faulty_policy_is_told_what_is_wrong(trace):
    with pytest.raises(ValueError, match="evict.. returned 2147483648"):
        sojourn.simulate(trace, Broken, "64K")
    with pytest.raises(KeyError, match="no such block"):
        sojourn.simulate(trace, Failing, "64K")
    with pytest.raises(TypeError, match="has no evict"):
        sojourn.simulate(trace, lambda room: type("Half", (), {"hit": 1, "insert": 1})(), "64K")
    with pytest.raises(TypeError, match="a policy is"):
        sojourn.simulate(trace, [7], "64K")


def test_bad_questions_are_refused(trace):
    with pytest.raises(ValueError, match="mru"):
        sojourn.simulate(trace, "mru", "64K")
    with pytest.raises(ValueError, match="does not hold a block"):
        sojourn.simulate(trace, "lru", 100)
    with pytest.raises(ValueError, match="unknown unit"):
        sojourn.simulate(trace, "lru", "64 bananas")
    with pytest.raises(ValueError, match="share"):
        trace.load(share="nothing")
    with pytest.raises(TypeError, match="belong to Trace.load"):
        sojourn.curve(trace.load(), block="4K")
