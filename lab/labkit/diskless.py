"""A machine without a disk whose root is over NBD, while its server is away and its network fails."""

import contextlib
import os
import time
from dataclasses import dataclass

from . import netboot
from .guest import Card, Guest
from .netboot import HERE, Machine, Site
from .golden import build, packages
from .server import Server
from .shell import free_port, run

MACHINE = Machine("root", 20, "nbd")


@dataclass(frozen=True)
class Severity:
    """How hard the outages are."""

    away: int
    """Seconds that the server is away, or packets are lost."""
    down: int
    """Seconds without a link."""
    rounds: int
    """Operations of each of the load's four writers."""
    every: bool
    """Whether the file system is checked after each outage, or at the end."""


SHORT, LONG = Severity(2, 3, 100, False), Severity(20, 60, 250, True)


class Outages:
    """What befalls a machine's server and its network; each is a method, called with a function that begins work."""

    def __init__(self, server, other, ports, severity):
        self.server, self.other, self.port = server, other, ports[0]
        self.away, self.down = severity.away, severity.down
        self.address, self.other_address = (f"{HERE}:{port}" for port in ports)

    def restarted_server(self, begin):
        """An administrator stops the server, and starts it again."""
        self.server.stop()
        begin()
        time.sleep(self.away)
        self.server.start(self.address, options=["--insecure"])

    def killed_server(self, begin):
        """The server crashes under load, and is started again."""
        begin()
        time.sleep(0.5)
        self.server.crash()
        time.sleep(self.away)
        self.server.start(self.address, options=["--insecure"])

    def cut_connections(self, begin):
        """Every connection is reset, again and again."""
        begin()
        for _ in range(10):
            run(["ss", "-K", "sport", "=", str(self.port)])
            time.sleep(0.2)

    def lost_packets(self, begin):
        """The switch forwards nothing: connections stay open and nothing comes."""
        run(["ip", "link", "set", MACHINE.tap, "nomaster"])
        begin()
        time.sleep(self.away)
        run(["ip", "link", "set", MACHINE.tap, "master", netboot.BRIDGE])

    def moved_disk(self, begin):
        """The disk goes to another server, which had not heard of it before."""
        self.other.start(self.other_address, options=["--insecure"])
        begin()
        time.sleep(0.5)
        self.server.stop()
        self.server.command("disk", "release", "lab-root")
        self.other.command("disk", "take", "lab-root")

    def link_down(self, begin):
        """There is no link."""
        run(["ip", "link", "set", MACHINE.tap, "down"])
        begin()
        time.sleep(self.down)
        run(["ip", "link", "set", MACHINE.tap, "up"])


def _survive(server, golden, severity, image="debian"):
    """Reads what was never read, and writes, while each outage lasts and after it; what the file system is then."""
    names = ("restarted_server", "killed_server", "cut_connections", "lost_packets", "link_down", "moved_disk")
    with Site(server.sockets, [MACHINE]), contextlib.ExitStack() as last:
        other = last.enter_context(Server(server.binary, server.home + "2"))
        other.command("init", "--store", os.path.join(server.home, "store"))
        outages = Outages(server, other, (free_port(), free_port()), severity)
        server.start(outages.address, options=["--insecure"])
        server.command("machine", "assign", MACHINE.mac, "--from", image, "--name", "lab-root", "--method", "nbd")
        process, _ = netboot.start(server, "--also", outages.other_address)
        last.callback(process.wait)
        last.callback(process.terminate)
        guest = last.enter_context(Guest(golden, None, memory=768, cpus=2, card=Card(MACHINE.tap, MACHINE.mac)))
        guest.start().ready(timeout=400)
        guest.execute(f"find /usr -xdev -type f | sort > /run/files && split -n r/{len(names)} -d -a 1 /run/files "
                      "/run/part.")
        survived = {}
        for number, name in enumerate(names):
            began = time.monotonic()
            getattr(outages, name)(lambda: guest.execute(
                f"(fsload /var/load.{number} {severity.rounds} >/run/load.log 2>&1 && touch /run/loaded.{number}) "
                "</dev/null >/dev/null 2>&1 & "
                f"(xargs -d '\\n' -a /run/part.{number} md5sum >/run/sums.{number} && touch /run/read.{number}) "
                "</dev/null >/dev/null 2>&1 &"))
            guest.execute(f"until [ -e /run/read.{number} ] && [ -e /run/loaded.{number} ]; do sleep 0.1; done",
                          timeout=180)
            survived[name] = round(time.monotonic() - began, 1)
            guest.execute("echo 3 > /proc/sys/vm/drop_caches && "
                          "dd if=/dev/urandom of=/var/probe bs=64k count=4 conv=fsync")
            guest.execute(f"md5sum --quiet -c /run/sums.{number} && fsload --check /var/load.{number}", timeout=180)
            if not severity.every and name != names[-1]:
                continue
            # As after a power cut, at this moment: the log is replayed, and nothing else is wrong.
            holder = other if name == "moved_disk" else server
            holder.command("disk", "snapshot", "lab-root", name)
            holder.command("disk", "create", name, "--from", f"lab-root@{name}")
            fsck(holder, name)
        # By the mark that has systemd leave it alone; the shell that looks has it in its own command line.
        keeper = guest.execute("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | grep -q '^@sojourn' || continue; "
                               "grep -c '^-1000$' $p/oom_score_adj; grep VmRSS $p/status; done | "
                               "tr -s '\\n\\t ' ' '")["note"]
        files = guest.execute("cat /run/sums.* | wc -l")["note"]
        errors = guest.execute("dmesg | grep -ciE 'i/o error|aborting journal|remounting' || true")["note"]
        guest.poweroff(timeout=120)
        # It said nothing when it left: until the server is told so by the network it has the disk.
        other.stop()
        other.start(outages.other_address, options=["--insecure"])
        fsck(other, "lab-root", "-n")
        other.stop()
    return {"survived": survived, "files": int(files), "errors": int(errors), "keeper": keeper}


def fsck(server, export, how="-p"):
    """Checks the root file system of an export; LabError when something is wrong with it that a log does not mend."""
    image = os.path.join(server.sockets, "checked.raw")
    run(["qemu-img", "convert", "-f", "raw", "-O", "raw", server.uri(export), image])
    partition = os.path.join(server.sockets, "root.raw")
    run(["dd", f"if={image}", f"of={partition}", "bs=1M", f"skip={packages.ROOT_OFFSET >> 20}", "conv=sparse",
         "status=none"])
    os.unlink(image)
    if how == "-p":
        run(["e2fsck", "-p", partition])
    run(["e2fsck", "-fn", partition])
    os.unlink(partition)


def diskless_root(server, golden):
    """Short outages."""
    return _survive(server, golden, SHORT)


def diskless_root_of_dracut(server, golden):
    """Short outages of a system whose initial RAM disk is of dracut."""
    folder = build.golden(recipe=packages.DRACUT)
    server.command("image", "import", os.path.join(folder, "golden.raw"), "dracut")
    return _survive(server, golden, SHORT, "dracut")


def diskless_root_for_long(server, golden):
    """Outages as long as real ones."""
    return _survive(server, golden, LONG)
