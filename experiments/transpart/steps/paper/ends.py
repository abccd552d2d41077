"""Beginning and end (Figures 9 and 10): the parts that are measured on a device, to be stacked."""

import os
import tempfile
import time

from labkit import LabError
from labkit.shell import run

from ..common import Borrow, fio
from .devices import ALONE, Stack

KEYS = ("SanDrive", "MSD", "IPOD")
PROFILE = {"SanDrive": "sandrive", "MSD": "msd", "IPOD": "ipod"}
STATE = 768 << 20
"""Bytes of the VM's state that is carried: its memory of 512 MiB and 256 MiB of its disk."""
MEMORY = 512 << 20
CHANGED = (0, 5, 50, 500)
"""MB of changes that go back to the key."""
LENT = "100G"
"""What Figure 9's allocation takes."""
LARGE = 240 << 30


def measure(lab, name):
    """One run of the parts of one key, or of the allocation."""
    began = time.monotonic()
    figures = allocate(lab) if name == "allocate" else parts(lab, name)
    lab.keep("ends", name, figures)
    lab.say(f"beginning and end with {name}: {time.monotonic() - began:.0f} s: {figures}")


def allocate(lab):
    """Seconds that it takes to find and to lend 100 GB of an owner's disk of 240 GiB at SATA's pace."""
    with tempfile.TemporaryDirectory(dir=lab.place) as place, Stack(lab.sojourn, place) as stack:
        path = os.path.join(place, "large")
        with open(path, "wb") as f:
            f.truncate(LARGE)
        stack.undo.callback(os.unlink, path)
        run(["mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1", path])
        file = stack.file(stack.paced(path, "sata"), LARGE)
        borrow = alone(Borrow(lab.sojourn, os.path.join(place, "home-b")))
        with borrow.up(file, "--size", LENT, "--min-extent", "4M") as (up, view):
            borrow.ask("down")
    return {"seconds": round(up, 3), "extents": view["lent"][0]["extents"]}


def parts(lab, name):
    """Seconds of each part with one key: its own resume and suspend, and those of a borrowed disk."""
    figures = {}
    with tempfile.TemporaryDirectory(dir=lab.place) as place, Stack(lab.sojourn, place) as stack:
        state = os.path.join(place, "state")
        with open(state, "wb") as f:
            for _ in range(STATE >> 20):
                f.write(os.urandom(1 << 20))
        stack.undo.callback(os.unlink, state)
        key = stack.split(stack.paced(state, PROFILE[name]))
        figures["resume"] = seconds(lambda: fio(key, "--rw=read", "--bs=128k", "--iodepth=4", f"--size={MEMORY}"))
        figures["suspend"] = seconds(
            lambda: fio(key, "--rw=write", "--bs=128k", "--iodepth=4", f"--size={MEMORY}", "--end_fsync=1")
        )
        lender = os.path.join(place, "owner")
        run(["cp", "--sparse=always", lab.owner, lender])
        stack.undo.callback(os.unlink, lender)
        file = stack.file(stack.paced(lender, "sata"), os.path.getsize(lender))
        borrow = alone(Borrow(lab.sojourn, os.path.join(place, "home-b")))
        with borrow.up(file, "--size", "4G", "--min-extent", "4M", "--state", key, "--prefetch") as (up, view):
            figures["usable"] = up
            figures["copy"] = seconds(lambda: fetched(borrow))
            uri = view["address"]
            figures["TP resume"] = seconds(
                lambda: fio(uri, "--rw=read", "--bs=128k", "--iodepth=4", f"--size={MEMORY}")
            )
            figures["TP down"] = seconds(lambda: borrow.ask("down"))
        for changed in CHANGED:
            with borrow.up(file, "--size", "4G", "--min-extent", "4M", "--state", key) as (_, view):
                uri = view["address"]
                if changed:
                    size = changed * 1000_000 // 4096 * 4096
                    fio(uri, "--rw=write", "--bs=128k", f"--size={size}", "--end_fsync=1")
                figures[f"save {changed}"] = seconds(lambda: borrow.ask("down"))
        # The suspended memory goes to the borrowed disk first; what of it changed counts as changed state.
        with borrow.up(file, "--size", "4G", "--min-extent", "4M") as (_, view):
            uri = view["address"]
            figures["TP suspend"] = seconds(
                lambda: fio(uri, "--rw=write", "--bs=128k", "--iodepth=4", f"--size={MEMORY}", "--end_fsync=1")
            )
            borrow.ask("down")
    return {part: round(value, 3) for part, value in figures.items()}


def alone(borrow):
    """The same where it does not ask the loop devices of other cases, which may be busy."""
    borrow.line = [*ALONE, *borrow.line]
    return borrow


def seconds(work):
    """How long something takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def fetched(borrow):
    """Waits until all of the state is on the borrowed disk."""
    end = time.monotonic() + 400
    while borrow.ask("status")[0]["state"]["fetched"] < STATE:
        if time.monotonic() > end:
            raise LabError("the state does not come")
        time.sleep(0.1)
