"""A PC that is started from a USB key (`packaging/medium/make`): how long each part of the start takes, and what swap
space and scratch space on the PC's free blocks are worth beside those on the key."""

import os
import shutil
import tempfile
import time

from labkit import LabError, medium
from labkit.shell import read_text, wait_until

from .common import rows

KEY = "throttling.bps-read=31000000,throttling.bps-write=7000000"
"""The paper's USB key (Table I): 31 MB/s for reads, 7 MB/s for writes."""

SPARE = 512 << 20
"""Bytes of a second key, as slow as the first together with it, that is written to for comparison."""

FIRMWARE = {"bios": False, "uefi": True}
SPACES = {"key": "/mnt/key", "borrowed": "/var/tmp"}
LARGE = 64
"""MiB of the file that is written and read in order."""

SMALL = "/sys/fs/cgroup/small"
SWAP = (f"echo $$ > {SMALL}/cgroup.procs && head -c 64M /dev/zero > /run/large/file && "
        "cat /run/large/file > /dev/null && rm /run/large/file")
DROP = "sync; echo 3 > /proc/sys/vm/drop_caches"
WORK_LIST = (
    (f"write {LARGE} MiB in order", f"dd if=/dev/zero of={{place}}/large bs=1M count={LARGE} conv=fsync"),
    (f"read {LARGE} MiB in order", "dd if={place}/large of=/dev/null bs=1M"),
    ("write 200 blocks of 4 KiB, each synced", "dd if=/dev/zero of={place}/small bs=4k count=200 oflag=sync"),
    ("copy 1,000 files of 4 KiB, sync", "cp -r /run/files {place}/files && sync"),
)
BLANK = "for d in /sys/block/sd*; do [ $(cat $d/removable) = 0 ] || ls $d | grep -q ^sd || echo /dev/${d##*/}; done"
"""Finds the second key: removable, without a partition."""
SWAPPED = "a file of 64 MiB in 32 MiB of memory, written and read"


def measure(sojourn, place, say):
    """Seconds of the parts of a start by either firmware, and of work in either space."""
    if os.geteuid():
        raise LabError("the start from a key needs root, as making the key does")
    work = tempfile.mkdtemp(prefix="key.", dir=place)
    try:
        lab = medium.Lab(sojourn, work, say)
        results = {"starts": {}}
        for name, uefi in FIRMWARE.items():
            disk, kept = lab.pc(name)
            spare = os.path.join(work, "spare.img")
            with open(spare, "wb") as f:
                f.truncate(SPARE)
            with lab.start([disk.path], name=name, uefi=uefi, throttle=KEY, more=[spare]) as guest:
                results["starts"][name] = start(guest)
                if name == "bios":
                    results["work"] = both(guest, say)
                before = time.monotonic()
                guest.poweroff()
                results["starts"][name]["switched off"] = time.monotonic() - before
            medium.untouched(disk, kept)
        return results
    finally:
        shutil.rmtree(work, ignore_errors=True)


def start(guest):
    """The parts of a start in seconds."""
    guest.start()
    wait_until("the key's menu", lambda: "GNU GRUB" in read_text(guest.console), medium.PATIENCE)
    menu = time.monotonic() - guest.began
    ready = guest.ready()
    guest.execute("cut -d' ' -f1 /proc/uptime")
    now = time.monotonic() - guest.began
    steps = guest.steps()
    up = float(guest.execute("cut -d' ' -f1 /proc/uptime")["note"])
    kernel = (now + time.monotonic() - guest.began) / 2 - up
    return {"firmware, to the menu": menu, "menu (2 s), kernel and initial RAM disk read": kernel - menu,
            "kernel, to the key's root": steps["key"], "`borrow scan`": steps["scan"] - steps["key"],
            "`borrow up`": steps["up"] - steps["scan"], "root put together": steps["root"] - steps["up"],
            "systemd": ready - kernel - steps["root"]}


def both(guest, say):
    """Seconds of all work in both spaces, and of swapping to either."""
    guest.execute(f"mkdir {SMALL} && echo 32M > {SMALL}/memory.max")
    spare = guest.execute(BLANK)["note"]
    guest.execute("mkdir -p /mnt/key /run/large /run/files && mount -t tmpfs -o size=1G large /run/large && "
                  f"mkfs.ext4 -q -F -m 0 -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 {spare} && "
                  f"mount -o noatime {spare} /mnt/key", timeout=medium.PATIENCE)
    guest.execute("head -c 4096000 /dev/urandom | split -a 3 -b 4096 - /run/files/f", timeout=medium.PATIENCE)
    results = {}
    for space, directory in SPACES.items():
        say(f"work on {space}")
        results[space] = {}
        for name, command in WORK_LIST:
            guest.execute(DROP, timeout=medium.PATIENCE)
            done = guest.execute(command.format(place=directory), timeout=medium.PATIENCE)
            results[space][name] = done["seconds"]
    results["borrowed"][SWAPPED] = guest.execute(SWAP, timeout=medium.PATIENCE)["seconds"]
    guest.execute("for d in /sys/block/dm-*; do [ $(cat $d/dm/name) != borrowed-swap ] || swapoff /dev/${d##*/}; done; "
                  "dd if=/dev/zero of=/mnt/key/swap bs=1M count=128 && chmod 600 /mnt/key/swap && "
                  "mkswap -q /mnt/key/swap && sync && swapon /mnt/key/swap", timeout=medium.PATIENCE)
    results["key"][SWAPPED] = guest.execute(SWAP, timeout=medium.PATIENCE)["seconds"]
    guest.execute("swapoff /mnt/key/swap && umount /mnt/key /run/large", timeout=medium.PATIENCE)
    return results


def table(result):
    """For the page."""
    starts = result["starts"]
    parts = [[part, *(f"{starts[name][part]:.1f} s" for name in starts)] for part in starts["bios"]]
    work = [[name, f"{seconds:.1f} s", f"{result['work']['borrowed'][name]:.1f} s",
             f"{seconds / result['work']['borrowed'][name]:.1f}"] for name, seconds in result["work"]["key"].items()]
    return (rows(["part", *(name.upper() for name in starts)], parts) + "\n" +
            rows(["work", "key, 31/7 MB/s", "borrowed", "key : borrowed"], work))
