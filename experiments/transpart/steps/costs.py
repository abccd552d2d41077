"""What it costs to begin and to end: discovery, allocation, state copied in and written back."""

import os
import statistics
import time

from labkit import LabError

from .common import USB, Borrow, fio, nbdkit, owner, rows, timed

DISK = 4 << 30
STATE = 600 << 20
TURNS = 5
"""Of what takes little time; the median counts."""
CHANGED = (0, 5, 50, 500)
"""Megabytes that are changed before the end."""


def measure(sojourn, place, say):
    """Seconds of each step; the state lies on a key, and then on a fast disk."""
    borrow = Borrow(sojourn, os.path.join(place, "home"))
    say("making a disk and a state")
    disk = owner(os.path.join(place, "owner"), DISK, 3)
    state = os.path.join(place, "state")
    with open(state, "wb") as f:
        for _ in range(STATE >> 20):
            f.write(os.urandom(1 << 20))
    size = str(1 << 30)
    turns = []
    for _ in range(TURNS):
        scan, _ = timed(lambda: borrow.ask("scan", disk))
        with borrow.up(disk, "--size", size) as (up, view):
            down, _ = timed(lambda: borrow.ask("down"))
        turns.append((scan, up, down))
    scan, up, down = (statistics.median(step) for step in zip(*turns, strict=True))
    result = {"scan": scan, "up": up, "extents": view["lent"][0]["extents"], "down": down, "states": []}
    socket = os.path.join(place, "state.sock")
    for name, filters in (("key", USB), ("disk", ())):
        say(f"state on a {name}")
        with nbdkit(state, socket, *filters) as uri:
            result["states"].append({"from": name, **carried(borrow, disk, size, uri, say)})
    for path in (disk, state):
        os.unlink(path)
    return result


def carried(borrow, disk, size, uri, say):
    """A disk with state: until it can be used, until all of it is here, and the end by what was changed."""
    with borrow.up(disk, "--size", size, "--state", uri, "--prefetch") as (up, view):
        began = time.monotonic()
        while borrow.ask("status")[0]["state"]["fetched"] < STATE:
            if time.monotonic() - began > 300:
                raise LabError("the state does not come")
            time.sleep(0.05)
        fetched = time.monotonic() - began
        borrow.ask("down")
    ends = []
    for changed in CHANGED:
        say(f"  {changed} MB changed")
        with borrow.up(disk, "--size", size, "--state", uri) as (_, view):
            if changed:
                fio(view["address"], "--rw=write", "--bs=1M", f"--size={changed * 1000_000 // 4096 * 4096}")
            seconds, report = timed(lambda: borrow.ask("down"))
        ends.append({"changed": changed, "written": report["written_back"], "seconds": round(seconds, 2)})
    return {"up": round(up, 2), "fetched": round(fetched, 2), "ends": ends}


def table(result):
    """For the page."""
    text = rows(["step", "seconds"],
                [["`borrow scan`, a disk of 4 GiB", f"{result['scan']:.3f}"],
                 [f"`borrow up` of 1 GiB in {result['extents']} extents, no state", f"{result['up']:.3f}"],
                 ["`borrow down`, owner's file system looked at again", f"{result['down']:.3f}"]])
    head = ["state on a", "can be used after", "all copied after",
            *(f"end, {changed} MB changed" for changed in CHANGED)]
    body = [[row["from"], f"{row['up']:.2f} s", f"{row['fetched']:.1f} s",
             *(f"{end['seconds']:.2f} s" for end in row["ends"])] for row in result["states"]]
    return text + "\n" + rows(head, body)
