"""What the guest tests do.

Each scenario is a function of a server that raises LabError, or returns facts.
`lab/guest-test` runs them, tests/tests/guest.rs asserts.
"""

import os

from .golden import build
from .guest import Guest
from .shell import free_port

SCRATCH = 512 << 20
"""Bytes of the disk that the kernel's nbd driver gets."""

ROUNDS = 250
"""Operations of each of the load's four writers."""


def private_disk(server, golden):
    """A guest boots from a private disk, writes, is powered off, boots again and finds it all."""
    server.command("disk", "create", "box", "--from", "debian")
    server.start()
    with Guest(golden, server.uri("box")) as guest:
        boot = guest.start().ready()
        guest.execute(f"fsload /var/load {ROUNDS}")
        written = guest.counters()["wr_bytes"]
        guest.poweroff()
    with Guest(golden, server.uri("box")) as guest:
        guest.start().ready()
        check = guest.execute("fsload --check /var/load")
        guest.poweroff()
    server.stop()
    return {"boot_seconds": boot, "written_bytes": written, "checked": check["note"]}


def kernel_nbd(server, golden):
    """The kernel's nbd driver over TCP, two connections to one disk: ext4, load, trim, fsck."""
    blank = os.path.join(server.sockets, "blank.raw")
    with open(blank, "wb") as f:
        f.truncate(SCRATCH)
    server.command("image", "import", blank, "blank")
    server.command("disk", "create", "box", "--from", "debian", "--ephemeral")
    server.command("disk", "create", "scratch", "--from", "blank")
    port = free_port()
    server.start(f"127.0.0.1:{port}")
    attach = f"nbd-client 10.0.2.2 {port} -N scratch /dev/nbd0 -C 2"
    with Guest(golden, server.uri("box"), network=True) as guest:
        guest.start().ready()
        guest.execute("modprobe virtio_net && modprobe nbd && ip link set lo up && ip link set eth0 up && "
                      "ip addr add 10.0.2.15/24 dev eth0")
        guest.execute(attach)
        connections = [e["connections"] for e in server.command("status")["exports"] if e["name"] == "scratch"]
        guest.execute("mkfs.ext4 -q -F /dev/nbd0 && mkdir -p /mnt/x && mount /dev/nbd0 /mnt/x")
        load = guest.execute(f"fsload /mnt/x/load {ROUNDS}")
        guest.execute("umount /mnt/x && e2fsck -fn /dev/nbd0")
        guest.execute("nbd-client -d /dev/nbd0")
        # What the kernel cached is gone with the device: the second attachment reads the disk.
        guest.execute(attach)
        guest.execute("e2fsck -fn /dev/nbd0 && mount -o ro /dev/nbd0 /mnt/x")
        check = guest.execute("fsload --check /mnt/x/load")
        guest.execute("umount /mnt/x && nbd-client -d /dev/nbd0")
        guest.poweroff()
    trims = [e["trims"] for e in server.command("status")["exports"] if e["name"] == "scratch"]
    server.stop()
    return {"connections": connections[0], "loaded": load["note"], "checked": check["note"], "trims": trims[0]}


def firmware(server, golden):
    """A guest boots through BIOS and GRUB from its private disk alone: nothing comes from outside it."""
    server.command("disk", "create", "box", "--from", "debian")
    server.start()
    with Guest(golden, server.uri("box"), firmware=True, memory=512, cpus=2) as guest:
        boot = guest.start().ready()
        guest.execute("systemctl is-system-running --wait || systemctl --failed --quiet | grep -c . | grep -qx 0")
        guest.poweroff()
    server.stop()
    return {"boot_seconds": boot}


ALL = {f.__name__.replace("_", "-"): f for f in (private_disk, kernel_nbd, firmware)}


def run(name, server):
    """Prepares a home with the golden image and runs one scenario on it."""
    golden = build.golden()
    server.command("init")
    server.command("image", "import", os.path.join(golden, "golden.raw"), "debian")
    return ALL[name](server, golden)
