"""What a suspension stores: of a guest that has booted, that did nothing since, and that worked a little."""

import os
import time

from desktop import Inside
from labkit import accel
from labkit.golden import build

MEMORY = 512
PAUSE = 30
"""Seconds that the guest runs between two suspensions."""
LIGHT = ("find / -xdev -type f | wc -l; tar -cf /var/tmp/work.tar /etc; gzip -kf /var/tmp/work.tar; "
         "sort -R /usr/lib/os-release | md5sum; dpkg -l | sort | tail -n 1; sync")
"""A little work: files are looked at, packed and written."""
STEPS = (
    ("booted", "after its boot", None),
    ("idle", "30 s later, idle", "true"),
    ("idle again", "30 s later, idle again", "true"),
    ("light work", "after light work", LIGHT),
)


def measure(home, work, keep, say):
    """A row for each step."""
    golden, channel = build.golden(say), os.path.join(work, "sizes")
    inside = Inside(channel)
    home.command("image", "import", os.path.join(golden, "golden.raw"), "debian")
    home.command("disk", "create", "sizes", "--from", "debian")
    # It boots by GRUB: a kernel that is given to QEMU lies in memory once more, and on no disk of the guest's.
    home.command("vm", "create", "sizes", "--disk", "sizes", "--memory", f"{MEMORY}M", "--qemu", accel.qemu(), "--",
                 "-chardev", f"socket,id=lab,path={channel},server=on,wait=off", "-serial", "chardev:lab", "-no-reboot")
    home.command("vm", "start", "sizes")
    inside.until_ready()
    for step, _, command in STEPS:
        if command:
            home.command("vm", "resume", "sizes")
            inside.execute(command)
        time.sleep(PAUSE)
        stored = home.command("vm", "suspend", "--wait", "sizes")
        keep({"step": step, "memory_bytes": stored["memory_bytes"], "paused_seconds": stored["paused_seconds"],
              "changed_extents": stored["changed_extents"], "full_extents": stored["full_extents"]})
