"""The paper's six benchmarks, each in a fresh copy of the borrower's system; a figure is seconds or MB/s."""

import time

from . import source
from .programs import launch, session
from .system import DEBS

MEMORY = 512
"""MiB that the VM has."""
SMALL = 64
"""MiB that Postmark has where its files, 27 MB and what waits to be written, hardly fit."""

POSTMARK = """set location /root/mail
set number 5000
set subdirectories 50
set transactions 20000
set size 512 10240
set read 4096
set write 4096
set buffering false
set seed 42
run
quit
"""
"""Table II."""

ANDREW = (
    ("MakeDir", f"cd {source.PLACE} && find . -type d -printf '/root/andrew/%P\\n' | xargs -d '\\n' mkdir -p"),
    ("Copy", f"cp -r {source.PLACE}/. /root/andrew"),
    ("ScanDir", "find /root/andrew -type f -printf '%s %m %t\\n' | wc -l"),
    ("ReadAll", "find /root/andrew -type f -exec cat {} + | wc -c"),
    ("Make", "cd /root/andrew && make -s tinyconfig && make -s lib/ mm/ kernel/"),
)
"""The phases. What is linked in the last is a directory's object, not a kernel."""
THINKING = 900
"""Seconds in which the paper's user types: 450 words, 30 in a minute. Nobody waits for them here."""


def postmark(system):
    """Table II, Figure 4: until the program ends, and until all is on the disk."""
    with open(f"{system.root}/tmp/postmark", "w", encoding="ascii") as f:
        f.write(POSTMARK)
    system.sh("mkdir mail")
    system.drop()
    began = time.monotonic()
    system.sh("postmark /tmp/postmark")
    ended = time.monotonic() - began
    system.flush()
    return {"postmark": ended, "flushed": time.monotonic() - began}


def postmark_small(system):
    """The same where its files do not fit into memory, so that the device is asked."""
    system.memory.limit(SMALL)
    system.limit_dirty(SMALL)
    return postmark(system)


def andrew(system):
    """Table III: five phases, what a phase wrote is on the disk at its end, and nothing is cached at its beginning."""
    figures = {}
    for name, command in ANDREW:
        system.drop()
        figures[name], _ = system.timed(command)
    figures["Overall"] = sum(figures.values())
    return figures


def office(system):
    """Figure 6: the seconds that the operations of a writer's quarter of an hour take, without his thinking."""
    session(system)
    system.begin_screen()
    system.drop()
    seconds, out = system.timed("python3 /tmp/office.py")
    figures = dict(line.rsplit(" ", 1) for line in out.splitlines() if line.startswith("= "))
    return {"operations": seconds, **{name[2:]: float(value) for name, value in figures.items()}}


def install(system):
    """Figure 7: the office suite's packages, which lie on the disk."""
    seconds, _ = system.timed(f"dpkg -i {DEBS}/*.deb")
    return {"install": seconds}


def bonnie(system, size="1g"):
    """Figure 8: MB/s of a large file, and seeks in a second."""
    out = system.sh(f"mkdir b && bonnie++ -q -d b -s {size} -r {MEMORY} -n 0 -f -u root:root 2>/dev/null", timeout=7200)
    fields = out.strip().splitlines()[-1].split(",")
    return {
        "write": int(fields[11]) / 1000,
        "rewrite": int(fields[13]) / 1000,
        "read": int(fields[17]) / 1000,
        "seeks": float(fields[19]),
    }


def bonnie_2g(system):
    """The same with a file of 2 GB, for which there is room when what is not needed goes."""
    system.sh(f"rm -r {DEBS} {source.PLACE} /usr/lib/firefox-esr /usr/share/gimp")
    system.drop()
    return bonnie(system, "2g")


def transfer(system):
    """Table I: MB/s of a file of 200 MB in order."""
    write, _ = system.timed("dd if=/dev/zero of=big bs=1M count=200 2>/dev/null")
    system.drop()
    read, _ = system.timed("dd if=big of=/dev/null bs=1M 2>/dev/null")
    return {"read": 209.7 / read, "write": 209.7 / write}


WORK = {
    "bonnie-2g": (bonnie_2g, "before"),
    "postmark": (postmark, "before"),
    "install": (install, "before"),
    "launch": (launch, "after"),
    "office": (office, "after"),
    "andrew": (andrew, "before"),
    "transfer": (transfer, "before"),
    "postmark-small": (postmark_small, "before"),
    "bonnie": (bonnie, "before"),
}
"""Every benchmark, and the state of the system that it begins with."""
BUSY = ("launch", "andrew", "office")
"""Those that keep a processor busy, two of which are run at a time."""
