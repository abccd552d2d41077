"""Storms on the real server: does its cache see what the simulator says?"""

import csv
import io
import os
import statistics
import subprocess
import sys

from . import common, traces
from .common import KIB, MIB, TOP, percent, size, table

sys.path.insert(0, os.path.join(TOP, "lab"))

from labkit import LabError  # noqa: E402
from labkit.server import Server  # noqa: E402

LOAD, GUESTS = "storm4-desktop", 4
CACHES = (32, 64)
#: how far apart the guests drift differs from run to run, and with it what the cache must bridge
ROUNDS = 5
POLICIES = ("lru", "arc", "s3fifo", "fmpq", "fmpq:lifetime=1")


def storms(sojourn, say):
    """Four desktops that boot at once, replayed to a server with each policy and size of its cache."""
    for _, sharing, trace in traces.at_hand(sojourn, (LOAD,), say):
        runs = {(cache, policy): [] for cache in CACHES for policy in POLICIES}
        try:
            with Server(sojourn.binary, os.path.join(sojourn.work, "home")) as server:
                grain = prepare(sojourn, server, trace)
                for turn in range(ROUNDS):
                    say(f"round {turn + 1} of {ROUNDS}")
                    for (cache, policy), done in runs.items():
                        done.append(replayed(sojourn, server, trace, policy, cache))
        except LabError as e:
            raise common.Missing(str(e)) from e
        found = []
        for (cache, policy), done in runs.items():
            view = sojourn("simulate", "cache", trace, "--share", sharing, "--block", "64K", "--policy", policy,
                           "--size", f"{cache}M")
            found.append({"cache": cache * MIB, "policy": policy, "runs": done,
                          "simulated": view["rows"][0]["hit_ratio"]})
        common.keep("storms", found, page(found, grain))


def page(found, grain):
    """The table: medians, and the range of what was read."""
    rows = []
    for row in found:
        read = sorted(run["store_bytes"] / MIB for run in row["runs"])
        hit = statistics.median(run["hit_ratio"] for run in row["runs"])
        rows.append((size(row["cache"]), row["policy"], percent(hit), percent(row["simulated"]),
                     f"{statistics.median(read):.0f} MiB", f"{read[0]:.0f} to {read[-1]:.0f}"))
    return (f"# Storms on the real server\n\n{LOAD} replayed as fast as the server answers (`sojourn replay`), "
            f"each guest with an ephemeral disk, without boot\nlists; medians of {ROUNDS} rounds. The image has "
            f"random data where the trace has requests, in chunks of {grain / KIB:.0f} KiB\non average; simulated are "
            "blocks of 64 KiB at the trace's own times.\n\n"
            + table(("cache", "policy", "hit", "simulated", "read from the store", "range"), rows))


def prepare(sojourn, server, trace):
    """A home with an image that has data wherever the trace asks, and a disk for each guest; the mean chunk."""
    image = os.path.join(sojourn.work, "image")
    text = subprocess.check_output([sojourn.binary, "trace", "convert", trace, "-", "--to", "csv"], text=True)
    blocks = set()
    for row in csv.DictReader(io.StringIO(text)):
        first, length = int(row["offset"]), int(row["length"])
        blocks.update(range(first // 4096, (first + length + 4095) // 4096))
    with open(image, "wb") as f:
        for block in sorted(blocks):
            f.seek(block * 4096)
            f.write(os.urandom(4096))
        f.truncate(-(-(max(blocks) + 1) * 4096 // MIB) * MIB)
    server.command("init")
    server.command("image", "import", image, "golden")
    for guest in range(1, GUESTS + 1):
        server.command("disk", "create", f"vm{guest}", "--from", "golden", "--ephemeral")
    data = server.command("store", "stats")["data"]
    return data["bytes"] / data["chunks"]


def replayed(sojourn, server, trace, policy, cache):
    """Starts the server with this cache, replays the storm, and asks what the cache did."""
    with open(os.path.join(server.home, "sojourn.toml"), "w", encoding="utf-8") as f:
        f.write(f'[cache]\nsize = {cache * MIB}\npolicy = "{policy}"\n[serve]\nboot_lists = false\n')
    server.start()
    sojourn("replay", trace, server.uri("vm{client}"), "--clients", GUESTS, "--allow-writes")
    status = server.command("status")
    server.stop()
    of, store = status["cache"], status["store"]
    return {"hits": of["hits"], "misses": of["misses"], "hit_ratio": of["hits"] / max(1, of["hits"] + of["misses"]),
            "store_bytes": store["plain_bytes"]}
