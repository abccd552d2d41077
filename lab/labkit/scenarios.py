"""What the guest tests do.

Each scenario is a function of a server that raises LabError, or returns facts.
`lab/guest-test` runs them, tests/tests/guest.rs asserts.
"""

import os
import shutil
import time

from . import LabError, netboot, owner, travel
from .golden import build
from .guest import Guest
from .link import Link
from .shell import free_port, run as run_command

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


def program_disk(server):
    """The binary as a disk of its own, for a guest to copy."""
    program = os.path.join(server.sockets, "program.raw")
    shutil.copy(server.binary, program)
    run_command(["strip", program])
    os.truncate(program, -(-os.path.getsize(program) // 4096) * 4096)
    return program


LENT = ["--size", "160M", "--min-extent", "256K"]
"""What the guest borrows of the owner's disk; QEMU's disks say that they turn, so the floor is given."""


def device_mapper(server, golden):
    """The kernel's device-mapper on the free blocks of an owner's ext4: crypt, mkfs, fill, overwrite."""
    disk, program = os.path.join(server.sockets, "owner.raw"), program_disk(server)
    sums = owner.make(disk)
    report = server.command("borrow", "scan", "--extents", *LENT, disk)
    lent = [tuple(r) for part in report["disks"][0]["parts"] for r in part["ranges"]]
    kept, shorter = owner.kept_hash(disk, lent), [(lent[0][0], lent[0][1] - 4096), *lent[1:]]
    control = owner.kept_hash(disk, shorter)
    borrow = "/run/sojourn --home /run/home borrow"
    server.command("disk", "create", "box", "--from", "debian", "--ephemeral")
    server.start()
    with Guest(golden, server.uri("box"), memory=512, more=[disk, program]) as guest:
        guest.start().ready()
        guest.execute("dd if=/dev/vdc of=/run/sojourn bs=1M && chmod +x /run/sojourn && modprobe dm-crypt")
        guest.execute(f"{borrow} up /dev/vdb {' '.join(LENT)} --as dm --name lent")
        guest.execute("mkfs.ext4 -q -m 0 /dev/mapper/lent && mkdir -p /mnt/x && mount /dev/mapper/lent /mnt/x")
        # Held: by the kernel now, against mounting and against a second loan.
        for refused in ("mount /dev/vdb /mnt", f"{borrow} up /dev/vdb --size 1M --as dm --name other"):
            if not guest.execute(refused, check=False)["rc"]:
                raise LabError(f"{refused!r} was not refused")
        guest.execute("dd if=/dev/urandom of=/run/pattern bs=1M count=8; i=0; while cp /run/pattern /mnt/x/$i; do "
                      "i=$((i + 1)); done 2>/dev/null; sync; umount /mnt/x && e2fsck -fn /dev/mapper/lent")
        guest.execute("while cat /run/pattern; do :; done 2>/dev/null | dd of=/dev/mapper/lent bs=1M "
                      "iflag=fullblock; sync; cmp -n 8388608 /run/pattern /dev/mapper/lent")
        status = guest.execute(f"{borrow} status | tail -n 1")["note"]
        down = guest.execute(f"{borrow} down lent")["note"]
        guest.execute("! ls /dev/mapper/lent && e2fsck -fn /dev/vdb")
        early_setup(guest, borrow)
        state = kernel_state(guest, borrow)
        guest.execute("! ls /dev/mapper | grep -v control && e2fsck -fn /dev/vdb")
        guest.poweroff()
    server.stop()
    owner.check(disk, sums)
    if owner.kept_hash(disk, lent) != kept:
        raise LabError("bytes that were not lent have changed")
    if owner.kept_hash(disk, shorter) == control:
        raise LabError("the check does not see a block that was written")
    return {"extents": len(lent), "files": len(sums), "status": status, "down": down, "state": state}


def early_setup(guest, borrow):
    """Swap space and a home on one borrowed disk; nobody takes it down while a program is there."""
    guest.execute(f"{borrow} up /dev/vdb {' '.join(LENT)} --as dm --swap 32M --mkfs ext4 --mount /mnt/x")
    guest.execute("mountpoint /mnt/x && grep -q partition /proc/swaps && cp -r /usr/share/common-licenses /mnt/x && sync")
    guest.execute("sleep 1000 9>/mnt/x/open & echo $! > /run/sleeper; while [ ! -e /mnt/x/open ]; do sleep 0.1; done")
    busy = guest.execute(f"{borrow} down", check=False)
    if busy["rc"] != 4:
        raise LabError(f"a file system in use was taken down: {busy}")
    guest.execute("test -e /mnt/x/open && kill $(cat /run/sleeper) && sleep 0.5")
    guest.execute(f"{borrow} down && ! mountpoint /mnt/x && ! grep -q partition /proc/swaps")


def kernel_state(guest, borrow):
    """State is copied onto a disk of the kernel; what was changed goes back and nothing else."""
    guest.execute("head -c 20M /dev/urandom > /run/state && cp /run/state /run/expected")
    guest.execute(f"{borrow} up /dev/vdb {' '.join(LENT)} --as dm --state /run/state --swap 16M")
    guest.execute("cmp -n 20971520 /run/state /dev/mapper/borrowed-files")
    for target in ("/dev/mapper/borrowed-files", "/run/expected"):
        guest.execute(f"for at in 3 700 701; do echo changed | dd of={target} bs=4096 seek=$at conv=notrunc; done; sync")
    guest.execute("! cmp /run/state /run/expected")
    down = guest.execute(f"{borrow} --json down | grep -o 'written_back[^,]*'")["note"]
    guest.execute("cmp /run/state /run/expected")
    return down


AWAY = 6.0
"""Seconds that a server is away, and that a link delivers nothing: longer than the request timeout."""

KEEPER = "--device /dev/nbd0 --request-timeout 3s"


def kept_device(server, golden):
    """A guest's ext4 on a kept NBD device, under load: restart, crash, cuts, a stall, a killed keeper."""
    blank, program = os.path.join(server.sockets, "blank.raw"), program_disk(server)
    with open(blank, "wb") as f:
        f.truncate(SCRATCH)
    server.command("image", "import", blank, "blank")
    server.command("disk", "create", "scratch", "--from", "blank")
    port = free_port()
    server.start(f"127.0.0.1:{port}")
    # The guest's own disk is not what is tested: a server that is away must not stop it.
    own = os.path.join(server.sockets, "box.raw")
    run_command(["cp", "--sparse=always", os.path.join(golden, "golden.raw"), own])
    with Link(port) as link, Guest(golden, own, memory=768, cpus=2, network=True, more=[program]) as guest:
        guest.start().ready()
        guest.execute("dd if=/dev/vdb of=/run/sojourn bs=1M && chmod +x /run/sojourn && modprobe virtio_net && "
                      "modprobe nbd && ip link set lo up && ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0")
        connect = f"/run/sojourn device connect nbd://10.0.2.2:{link.port}/scratch {KEEPER}"
        guest.execute(connect)
        guest.execute("mkfs.ext4 -q /dev/nbd0 && mkdir -p /mnt/x && mount /dev/nbd0 /mnt/x && mkdir /mnt/x/load")
        # Until it is told to stop: each round begins anew, the last one stays.
        guest.execute("(until [ -e /run/stop ]; do rm -rf /mnt/x/load/*; "
                      f"fsload /mnt/x/load {ROUNDS // 5} >/run/load.log 2>&1 || touch /run/failed; done; "
                      "touch /run/stopped) >/dev/null 2>&1 &")
        outages = {
            "restart": lambda: (server.stop(), time.sleep(AWAY), server.start(f"127.0.0.1:{port}")),
            "crash": lambda: (server.crash(), time.sleep(AWAY), server.start(f"127.0.0.1:{port}")),
            "cut": link.cut,
            "stall": lambda: (link.stall(), time.sleep(AWAY), link.go()),
            "killed keeper": lambda: (guest.execute("pkill -9 sojourn || kill -9 $(pidof sojourn)"), link.cut(),
                                      guest.execute(connect)),
        }
        survived = {}
        for name, outage in outages.items():
            made = link.made
            outage()
            guest.execute("dd if=/dev/urandom of=/mnt/x/probe bs=64k count=4 conv=fsync", timeout=90)
            survived[name] = link.made - made
        guest.execute("touch /run/stop; until [ -e /run/stopped ]; do sleep 0.1; done; [ ! -e /run/failed ]")
        refused = guest.execute("/run/sojourn device disconnect /dev/nbd0", check=False)
        if refused["rc"] != 4:
            raise LabError(f"a mounted device was not refused: {refused}")
        listed = guest.execute("/run/sojourn device list")["note"]
        guest.execute("umount /mnt/x && e2fsck -fn /dev/nbd0")
        guest.execute("mount -o ro /dev/nbd0 /mnt/x")
        check = guest.execute("fsload --check /mnt/x/load")
        guest.execute("umount /mnt/x && /run/sojourn device disconnect /dev/nbd0")
        # The keeper notices, and ends.
        guest.execute("while pidof sojourn; do sleep 0.1; done")
        errors = guest.execute("dmesg | grep -ciE 'i/o error|aborting journal|remounting' || true")["note"]
        guest.poweroff()
    server.stop()
    return {"survived": survived, "listed": listed, "checked": check["note"], "errors": int(errors)}


ALL = {f.__name__.replace("_", "-"): f for f in (private_disk, kernel_nbd, kept_device, firmware, device_mapper,
                                                      netboot.blank_machines, travel.hop)}


def run(name, server):
    """Prepares a home with the golden image and runs one scenario on it."""
    golden = build.golden()
    server.command("init")
    server.command("image", "import", os.path.join(golden, "golden.raw"), "debian")
    return ALL[name](server, golden)
