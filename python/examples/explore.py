#!/usr/bin/env python3
"""From a trace to answers: what it is like, how much cache, which policy, how many clients.

    python explore.py [TRACE] [--out FOLDER]

Without a trace it makes one: 20 clients that boot from one image and then work. The cells (# %%)
run one by one in an editor that knows them. Plots need matplotlib.
"""

# %% A trace
import argparse
import collections
import pathlib

import matplotlib
import numpy as np

import sojourn

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("trace", nargs="?")
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
arguments = parser.parse_args()


def boots(clients=20, seed=7):
    """Clients that read the same 40 MiB in nearly the same order, then places of their own."""
    random = np.random.default_rng(seed)
    image = random.permutation(2_500) * 16_384
    rows = []
    for client in range(clients):
        begin = client * 200_000_000
        boot = begin + np.cumsum(random.exponential(2e6, len(image)))
        rows += zip(boot, image, [16_384] * len(image), [0] * len(image), [client] * len(image))
        home = (1 << 30) + random.zipf(1.3, 3_000) % 20_000 * 4096
        work = boot[-1] + np.cumsum(random.exponential(4e6, len(home)))
        rows += zip(work, home, [4096] * len(home), random.random(len(home)) < 0.3, [client] * len(home))
    rows.sort()
    time, offset, length, op, client = (np.array(column) for column in zip(*rows))
    return sojourn.Trace.from_columns(
        offset.astype(np.uint64),
        length.astype(np.uint32),
        op=op.astype(np.uint8),
        time=time.astype(np.uint64),
        client=client.astype(np.uint32),
    )


trace = sojourn.open(arguments.trace) if arguments.trace else boots()
columns = trace.columns()
print(f"{trace}: {len(columns['time'])} requests, {columns['length'].sum() / 1e6:.0f} MB")

# %% What it is like
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
reads = columns["op"] == 0
left.scatter(columns["time"][reads] / 1e9, columns["offset"][reads] / 2**20, s=0.2, label="read")
left.scatter(columns["time"][~reads] / 1e9, columns["offset"][~reads] / 2**20, s=0.2, label="other")
left.set(xlabel="s", ylabel="MiB", title="Where, over time")
left.legend(markerscale=12)
sizes = collections.Counter((columns["length"] // 1024).tolist())
right.bar([str(size) for size, _ in sorted(sizes.items())], [count for _, count in sorted(sizes.items())])
right.set(xlabel="KiB", ylabel="requests", title="Sizes")
figure.tight_layout()
figure.savefig(arguments.out / "requests.png", dpi=110)


# %% A policy of one's own: a clock whose hand gives two more chances
class TwoChances:
    """What was used again stays for two more rounds."""

    def __init__(self, room):
        self.room, self.ring, self.chances, self.hand = room, [], {}, 0

    def hit(self, block):
        """Remembers the use."""
        self.chances[block] = 2

    def insert(self, block):
        """Puts the block where the last one left."""
        if len(self.ring) < self.room:
            self.ring.append(block)
        else:
            self.ring[self.hand] = block
            self.hand = (self.hand + 1) % self.room
        self.chances[block] = 0

    def evict(self):
        """Passes over what has chances left."""
        while self.chances[self.ring[self.hand]]:
            self.chances[self.ring[self.hand]] -= 1
            self.hand = (self.hand + 1) % self.room
        del self.chances[self.ring[self.hand]]
        return self.ring[self.hand]


# %% How much cache, and which policy
load = trace.load()
curve = sojourn.curve(load)
grid = np.geomspace(1 << 20, curve.full, 12).astype(int).tolist()
figure, axes = plt.subplots(figsize=(7, 4))
axes.semilogx(grid, curve.hit_ratios(grid) * 100, "k:", label="lru, exact curve", base=2)
for policy in ("lirs", "s3fifo", "fmpq", TwoChances, "opt"):
    outcomes = sojourn.simulate(load, policy, grid)
    axes.semilogx(grid, [o.hit_ratio * 100 for o in outcomes], label=outcomes[0].policy, base=2)
axes.set(xlabel="bytes of cache", ylabel="hits, %")
axes.legend()
figure.tight_layout()
figure.savefig(arguments.out / "hit-ratios.png", dpi=110)

budget = grid[len(grid) // 2]
advice = sojourn.tune(load, budget, one_in=8)
print(f"{budget / 2**20:.0f} MiB: {advice.policy} saves {advice.saved:.1%} of LRU's misses")

# %% How many clients
figure, axes = plt.subplots(figsize=(7, 4))
for hit in (0, 0.5, advice.hit_ratio):
    demands = {"cpu": 0.02e-3, "disk": (1 - hit) * 6e-3, "network": 0.04e-3}
    solution = sojourn.solve(demands, 100, think=0.02)
    axes.plot(solution.clients, solution.response * 1e3, label=f"{hit:.0%} hits, knee {solution.knee:.0f}")
axes.set(xlabel="clients", ylabel="response, ms", yscale="log")
axes.legend()
figure.tight_layout()
figure.savefig(arguments.out / "clients.png", dpi=110)
print(f"plots: {', '.join(str(arguments.out / name) for name in ('requests.png', 'hit-ratios.png', 'clients.png'))}")
