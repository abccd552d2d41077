"""Storms on the real server: does its cache see what the simulator says?"""

import csv
import io
import os
import subprocess
import sys

from . import common, traces
from .common import KIB, MIB, TOP, percent, size, table

sys.path.insert(0, os.path.join(TOP, "lab"))

from labkit import LabError  # noqa: E402
from labkit.server import Server  # noqa: E402

LOAD, GUESTS = "storm4-desktop", 4
CACHES = (32, 64, 128)
POLICIES = ("lru", "arc", "s3fifo", "fmpq", "fmpq:lifetime=1")


def storms(sojourn, say):
    """Four desktops that boot at once, replayed to a server with each policy and size of its cache."""
    for _, sharing, trace in traces.at_hand(sojourn, (LOAD,), say):
        found = []
        try:
            with Server(sojourn.binary, os.path.join(sojourn.work, "home")) as server:
                grain = prepare(sojourn, server, trace)
                for cache in CACHES:
                    for policy in POLICIES:
                        say(f"{policy}, {cache} MiB")
                        found.append(replayed(sojourn, server, trace, policy, cache))
        except LabError as e:
            raise common.Missing(str(e)) from e
        for row in found:
            view = sojourn("simulate", "cache", trace, "--share", sharing, "--block", "64K", "--policy", row["policy"],
                           "--size", f"{row['cache'] // MIB}M")
            row["simulated"] = view["rows"][0]["hit_ratio"]
        rows = [(size(r["cache"]), r["policy"], r["hits"], r["misses"], percent(r["hit_ratio"]),
                 percent(r["simulated"]), f"{r['store_bytes'] / MIB:.0f} MiB") for r in found]
        page = (f"# Storms on the real server\n\n{LOAD} replayed as fast as the server answers (`sojourn replay`), "
                f"each guest with an ephemeral disk, without boot\nlists. The image has random data where the trace "
                f"has requests, in chunks of {grain / KIB:.0f} KiB on average; simulated are\nblocks of 64 KiB at the "
                "trace's own times.\n\n"
                + table(("cache", "policy", "hits", "misses", "hit", "simulated", "read from the store"), rows))
        common.keep("storms", found, page)


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
    return {"policy": policy, "cache": cache * MIB, "hits": of["hits"], "misses": of["misses"],
            "hit_ratio": of["hits"] / max(1, of["hits"] + of["misses"]), "store_bytes": store["plain_bytes"]}
