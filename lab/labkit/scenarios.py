"""What the guest tests do.

Each scenario is a function of a server that raises LabError, or returns facts.
`lab/guest-test` runs them, tests/tests/guest.rs asserts.
"""

import os
import shutil
import time

from . import LabError, classroom, diskless, initiator, menu, netboot, owner, packaged, power, travel
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
        guest.execute(f"{borrow} up /dev/vdb {' '.join(LENT)} --as dm --name lent 2>/run/said && "
                      "grep -q 'start no virtual machine' /run/said")
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
        half_way_down(guest, borrow)
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
    # Neither another disk of that name nor another home has these changes forgotten.
    for refused in (f"{borrow} up /dev/vdb {' '.join(LENT)} --as dm", f"{borrow.replace('/run/home', '/run/else')} down"):
        code = guest.execute(refused, check=False)["rc"]
        if code != 4:
            raise LabError(f"{refused!r} ended with {code}")
    down = guest.execute(f"{borrow} --json down | grep -o 'written_back[^,]*'")["note"]
    guest.execute("cmp /run/state /run/expected")
    return down


def half_way_down(guest, borrow):
    """A `down` that is refused after the state went back: the next one leaves it alone, or goes on where it lies."""
    guest.execute("cp /run/state /run/expected")
    guest.execute(f"{borrow} up /dev/vdb {' '.join(LENT)} --as dm --state /run/state --swap 16M")

    def change(target, at):
        guest.execute(f"echo changed again | dd of={target} bs=4096 seek={at} conv=notrunc; sync")

    def down(code):
        done = guest.execute(f"{borrow} --json down >/run/down", check=False)["rc"]
        if done != code:
            raise LabError(f"`down` ended with {done}, and not with {code}")

    change("/dev/mapper/borrowed-files", 5)
    change("/run/expected", 5)
    guest.execute("sleep 1000 9</dev/mapper/borrowed & echo $! >/run/holder; "
                  "while [ ! -e /proc/$!/fd/9 ]; do sleep 0.1; done")
    down(4)
    guest.execute("cmp /run/state /run/expected && ! ls /dev/mapper/borrowed-files")
    # The whole disk: the state lies behind 16 MiB of swap space there.
    change("/dev/mapper/borrowed", 4096 + 9)
    change("/run/expected", 9)
    down(4)
    guest.execute("cmp /run/state /run/expected")
    change("/run/state", 11)
    change("/run/expected", 11)
    guest.execute("kill $(cat /run/holder); while [ -e /proc/$(cat /run/holder)/fd/9 ]; do sleep 0.1; done")
    down(0)
    guest.execute("cmp /run/state /run/expected && grep -q '\"written_back\": 0' /run/down")


AWAY = 6.0
"""Seconds that a server is away: longer than the request timeout."""

KEEPER = "--device /dev/nbd0 --request-timeout 3s"


def stall(link, guest):
    """Has a link deliver nothing, with a write under way, until the keeper has connected anew."""
    made, deadline = link.made, time.monotonic() + 90
    link.stall()
    # The load alone may have nothing to say for so long that no request is late.
    guest.execute("(dd if=/dev/urandom of=/mnt/x/stalled bs=64k count=4 conv=fsync && touch /run/wrote) "
                  ">/dev/null 2>&1 &")
    while link.made == made:
        if time.monotonic() > deadline:
            raise LabError("the keeper of a stalled connection did not connect anew")
        time.sleep(0.1)
    link.go()
    guest.execute("until [ -e /run/wrote ]; do sleep 0.1; done")


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
            "stall": lambda: stall(link, guest),
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


GATEWAY_RULES = """access = [
  {{ certificate = "lab", write = ["*"], read = ["*"] }},
  {{ uid = {uid}, write = ["*"] }},
]
"""


def gateway(server, disks, image, name):
    """Starts a server whose disks are taken through its gateway; its port, and a disk with the certificates."""
    for disk in disks:
        server.command("disk", "create", disk, "--from", image)
        server.command("disk", "release", disk)
    for words in (["ca"], ["server", name], ["client", "lab"]):
        server.command("cert", *words)
    config = os.path.join(server.home, "sojourn.toml")
    with open(config, encoding="utf-8") as f:
        text = f.read()
    with open(config, "w", encoding="utf-8") as f:
        f.write(GATEWAY_RULES.format(uid=os.getuid()) + text)
    pki, port = os.path.join(server.sockets, "pki.raw"), free_port()
    run_command(["tar", "-C", os.path.join(server.home, "tls/clients/lab"), "-cf", pki, "."])
    os.truncate(pki, -(-os.path.getsize(pki) // 4096) * 4096)
    server.start(options=("--gateway", f"127.0.0.1:{port}"))
    return port, pki


TRAVELLER = ("dd if=/dev/vdb of=/run/sojourn bs=1M && chmod +x /run/sojourn && mkdir /run/pki && "
             "tar -C /run/pki -xf /dev/vdc && chmod -R go= /run/pki && modprobe virtio_net && modprobe nbd && "
             "ip link set lo up && ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0")
"""Has a guest with the disks of the program and the certificates be ready to attach others."""


def attached_device(server, golden):
    """A guest's ext4 on an attached disk: its keeper, its agent and the server are killed, and it goes back."""
    blank, program = os.path.join(server.sockets, "blank.raw"), program_disk(server)
    with open(blank, "wb") as f:
        f.truncate(SCRATCH)
    server.command("image", "import", blank, "blank")
    port, pki = gateway(server, ["scratch", "second"], "blank", "10.0.2.2")
    own = os.path.join(server.sockets, "box.raw")
    run_command(["cp", "--sparse=always", os.path.join(golden, "golden.raw"), own])
    sojourn = "/run/sojourn --home /run/home"
    attach = f"{sojourn} attach scratch --from https://10.0.2.2:{port} --tls-dir /run/pki --device /dev/nbd0"

    def kill(words):
        # By what is in their command line; the shell that looks has it in its own.
        return ("for p in /proc/[0-9]*; do [ ! $p/exe -ef /run/sojourn ] || "
                f"! grep -qz {words} $p/cmdline || kill -9 ${{p#/proc/}}; done")

    with Guest(golden, own, memory=768, cpus=2, network=True, more=[program, pki]) as guest:
        guest.start().ready()
        guest.execute(TRAVELLER)
        guest.execute(attach)
        guest.execute(attach.replace("scratch", "second").replace("nbd0", "nbd1"))
        guest.execute("mkfs.ext4 -q /dev/nbd1 && mkfs.ext4 -q /dev/nbd0 && mkdir -p /mnt/x && mount /dev/nbd0 /mnt/x")
        load = guest.execute(f"fsload /mnt/x/load {ROUNDS}")
        outages = {
            "killed keepers": lambda: guest.execute(kill("connect")),
            "killed agent": lambda: guest.execute(f"{kill('^serve')}; sleep 1; {sojourn} attach scratch"),
            "killed both": lambda: guest.execute(f"{kill('connect')}; {kill('^serve')}; {sojourn} attach scratch"),
            "restarted server": lambda: (server.stop(), server.start(options=("--gateway", f"127.0.0.1:{port}"))),
        }
        for name, outage in outages.items():
            outage()
            guest.execute("echo 3 > /proc/sys/vm/drop_caches; "
                          "dd if=/dev/urandom of=/mnt/x/probe bs=64k count=4 conv=fsync", timeout=90)
            if guest.execute(f"{sojourn} attach status | grep -c 'is /dev/nbd'")["note"] != "2":
                raise LabError(f"{name}: the disks are not looked after")
        # Two keepers and the agent.
        locked = "grep -h VmLck /proc/[0-9]*/status | grep -vc ' 0 kB'"
        guest.execute(f"until [ $({locked}) -ge 3 ]; do sleep 0.2; done")
        status = guest.execute(f"{sojourn} attach status | grep -o 'is /dev/nbd[01]' | paste -sd' '")["note"]
        refused = guest.execute(f"{sojourn} detach scratch", check=False)
        if refused["rc"] != 4:
            raise LabError(f"a mounted device was not refused: {refused}")
        guest.execute("dd if=/dev/urandom of=/mnt/x/probe bs=64k count=4 conv=fsync && umount /mnt/x")
        guest.execute(f"{sojourn} detach scratch && {sojourn} detach second")
        listed = guest.execute(f"{sojourn} device list")["note"]
        guest.execute(f"{kill('^serve')}; rm -rf /run/home && {attach}")
        guest.execute("e2fsck -fn /dev/nbd0 && mount -o ro /dev/nbd0 /mnt/x")
        check = guest.execute("fsload --check /mnt/x/load")
        guest.execute(f"umount /mnt/x && {sojourn} detach scratch")
        errors = guest.execute("dmesg | grep -ciE 'i/o error|aborting journal|remounting' || true")["note"]
        guest.poweroff()
    server.stop()
    return {"survived": list(outages), "status": status, "listed": listed,
            "loaded": load["note"], "checked": check["note"], "errors": int(errors)}


AWHILE, LONG = 20, 60
"""Seconds that an attached disk is without its server, or its stalled link; and without any link."""


def attached_root(server, golden):
    """The root file system of a real guest on an attached device, read and written while the server is away, is killed,
    and the link is cut, stalls and is down."""
    program = program_disk(server)
    port, pki = gateway(server, ["root"], "debian", "10.0.2.2")
    own = os.path.join(server.sockets, "box.raw")
    run_command(["cp", "--sparse=always", os.path.join(golden, "golden.raw"), own])
    outages = ("restarted server", "killed server", "cut link", "stalled link", "link down")

    def begin(number):
        """Reads a part of the files that nobody has read yet, and writes others, beside what comes."""
        guest.execute(f"(rm -rf /mnt/x/load; fsload /mnt/x/load {ROUNDS} >/run/load.log 2>&1 && "
                      f"touch /run/loaded.{number}) "
                      "</dev/null >/dev/null 2>&1 & "
                      f"(cd /mnt/x && xargs -d '\\n' -a /run/part.{number} md5sum >/run/sums.{number} && "
                      f"touch /run/read.{number}) </dev/null >/dev/null 2>&1 &")

    def wait(number, seconds):
        time.sleep(seconds)
        guest.execute(f"[ ! -e /run/read.{number} ]")

    def outage(name, number):
        start = {"options": ("--gateway", f"127.0.0.1:{port}")}
        match name:
            case "restarted server":
                server.stop()
                begin(number)
                wait(number, AWHILE)
                server.start(**start)
            case "killed server":
                server.crash()
                begin(number)
                wait(number, AWHILE)
                server.start(**start)
            case "cut link":
                begin(number)
                for _ in range(10):
                    link.cut()
                    time.sleep(0.2)
            case "stalled link":
                link.stall()
                begin(number)
                wait(number, AWHILE)
                link.go()
            case "link down":
                guest.execute("ip link set eth0 down")
                begin(number)
                wait(number, LONG)
                guest.execute("ip link set eth0 up")

    with Link(port) as link, Guest(golden, own, memory=768, cpus=2, network=True, more=[program, pki]) as guest:
        guest.start().ready()
        guest.execute(TRAVELLER)
        guest.execute(f"/run/sojourn --home /run/home attach root --from https://10.0.2.2:{link.port} --tls-dir /run/pki "
                      "--device /dev/nbd0")
        # It is the system that the guest itself runs.
        root = "/dev/nbd0p" + guest.execute("findmnt -no SOURCE / | grep -o '[0-9]*$'")["note"]
        guest.execute(f"mkdir -p /mnt/x && mount {root} /mnt/x && cd / && find usr -type f | sort > /run/files && "
                      f"split -n r/{len(outages)} -d -a 1 /run/files /run/part.")
        seconds = {}
        for number, name in enumerate(outages):
            began = time.monotonic()
            outage(name, number)
            guest.execute(f"until [ -e /run/read.{number} ] && [ -e /run/loaded.{number} ]; do sleep 0.1; done",
                          timeout=180)
            seconds[name] = round(time.monotonic() - began, 1)
            guest.execute(f"cd / && md5sum --quiet -c /run/sums.{number}")
            guest.execute("dd if=/dev/urandom of=/mnt/x/probe bs=64k count=4 conv=fsync && umount /mnt/x && "
                          f"e2fsck -fn {root} && mount {root} /mnt/x && fsload --check /mnt/x/load", timeout=180)
        files = guest.execute("cat /run/sums.* | wc -l")["note"]
        guest.execute("umount /mnt/x && /run/sojourn --home /run/home detach root", timeout=180)
        errors = guest.execute("dmesg | grep -ciE 'i/o error|aborting journal|remounting' || true")["note"]
        guest.poweroff()
    server.stop()
    return {"survived": seconds, "files": int(files), "errors": int(errors)}


ALL = {f.__name__.replace("_", "-"): f for f in (private_disk, kernel_nbd, kept_device, attached_device, attached_root,
                                                 firmware, device_mapper, netboot.blank_machines,
                                                 netboot.more_blank_machines, netboot.own_disk, netboot.dos, menu.menu,
                                                 diskless.diskless_root, diskless.diskless_root_for_long,
                                                 diskless.diskless_root_of_dracut, diskless.diskless_root_taken_over,
                                                 classroom.classroom, initiator.initiators, packaged.packaged,
                                                 power.power_cuts, travel.hop)}


def run(name, server):
    """Prepares a home with the golden image and runs one scenario on it."""
    golden = build.golden()
    server.command("init")
    server.command("image", "import", os.path.join(golden, "golden.raw"), "debian")
    return ALL[name](server, golden)
