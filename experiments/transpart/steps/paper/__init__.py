"""The paper's evaluation as it was: its devices, its benchmarks, its figures.

Nothing is emulated: work runs natively in a system that lies on the device, as the paper's VM lay on the key. Every
run is kept as soon as it is there, so what was interrupted goes on, and `--runs` adds.
"""

import contextlib
import os
import queue
import tempfile
import threading
import time

from labkit import LabError
from labkit.shell import locked, run

from ..common import owner
from . import chroot, ends, figures, tables
from .devices import DEVICES, Stack, device
from .system import Images
from .work import BUSY, MEMORY, WORK

RUNS = {"bonnie": 1, "bonnie-2g": 1, "ends": 2}
"""How many runs a case has unless more are asked for; five where nothing is said."""
PLAIN = "TransPart, plain"
"""The borrowed disk's way without borrowing and cipher (section 5.1)."""
CASES = {
    "bonnie-2g": ("SanDrive",),
    "ends": (*ends.KEYS, "allocate"),
    "postmark-small": (*DEVICES, PLAIN),
    "install": (*DEVICES, PLAIN),
    "transfer": (*DEVICES, PLAIN),
}
"""The devices of benchmarks that are not run on all five, or on more."""
OWNER = 20 << 30
"""Bytes of the owner's disk: 45 % full, filled and emptied three times."""


class Laboratory:
    """The images, an owner's disk, and what was measured so far."""

    def __init__(self, sojourn, place, say, known, save):
        self.sojourn, self.place, self.say = sojourn, place, say
        self.result = known or {"runs": {}, "facts": {}}
        self.lock, self.processor = threading.Lock(), threading.Semaphore(2)
        self.save = save
        chroot.leftovers()
        # What is written goes to memory, so that only the profile decides how long it takes.
        run(["mount", "-t", "tmpfs", "-o", "size=14G", "tmpfs", place])
        self.images = Images(say)
        self.result["facts"].update(self.images.prepare(sojourn, place))
        self.owner = owner(os.path.join(place, "owner"), OWNER, 3)

    def keep(self, work, name, figures):
        """One run more."""
        with self.lock:
            self.result["runs"].setdefault(work, {}).setdefault(name, []).append(figures)
            self.save(self.result)

    def count(self, work, name):
        """How many runs there are."""
        return len(self.result["runs"].get(work, {}).get(name, []))

    def measure(self, work, name):
        """One run of one benchmark on one device."""
        function, state = WORK[work]
        began = time.monotonic()
        image = getattr(self.images, state)
        with folder(self.place) as place, Stack(self.sojourn, place) as stack:
            lender = None
            if name in ("TransPart", PLAIN):
                lender = os.path.join(place, "owner")
                run(["cp", "--sparse=always", self.owner, lender])
                stack.undo.callback(os.unlink, lender)
            loop = device(stack, "TransPart" if lender else name, image, lender, encrypted=name != PLAIN)
            with chroot.System(stack.mount(loop), MEMORY) as system:
                figures = function(system)
            figures["load"] = round(os.getloadavg()[0], 1)
            self.keep(work, name, {key: round(value, 3) for key, value in figures.items()})
        self.say(
            f"{work} on {name}: {time.monotonic() - began:.0f} s: "
            + ", ".join(f"{key} {value:.1f}" for key, value in figures.items())
        )


def folder(place):
    """A temporary directory; what is still in use there does not cost a run its figures."""
    return tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True)


def measure(sojourn, place, say, *, known=None, save=lambda result: None, runs=None, works=None, jobs=5):
    """All benchmarks on all devices until each has its runs; what mostly waits for its device goes side by side."""
    if os.geteuid():
        raise LabError("the paper's evaluation needs root: it mounts, and limits memory")
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with locked(os.path.join(place, "paper.lock")):
        lab = Laboratory(sojourn, os.path.join(place, "paper"), say, known, save)
        failed = side_by_side(lab, list(order(lab, runs, works)), jobs)
    if failed:
        raise LabError("; ".join(failed))
    return lab.result


def side_by_side(lab, listed, jobs):
    """Runs cases, so many at a time; returns why some failed."""
    cases, failed = queue.Queue(), []
    for case in listed:
        cases.put(case)

    def worker():
        while True:
            try:
                work, name = cases.get_nowait()
            except queue.Empty:
                return
            try:
                if work == "ends":
                    ends.measure(lab, name)
                elif work in BUSY:
                    with lab.processor:
                        lab.measure(work, name)
                else:
                    lab.measure(work, name)
            except Exception as e:  # one case must not end the others without its reason
                failed.append(f"{work} on {name}: {e}")
                lab.say(failed[-1])

    threads = [threading.Thread(target=worker, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def order(lab, runs, works):
    """What is to be run: first runs before second ones, so that an interrupted measurement has something of all."""
    for number in range(runs or 5):
        for work in works or (*WORK, "ends"):
            wanted = runs or RUNS.get(work, 5)
            for name in CASES.get(work, DEVICES):
                if number < wanted and lab.count(work, name) <= number:
                    yield work, name


def draw(results):
    """The figures of what was measured, beside the page."""
    figures.write(results["paper"], results.get("key"))


table = tables.table
