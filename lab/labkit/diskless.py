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


LEASE = 5
"""Seconds after which another server may take the disks of one that is silent."""

SHORT, LONG = Severity(2, 3, 100, False), Severity(20, 60, 250, True)


class Outages:
    """What befalls a machine's server and its network; each is a method, called with a function that begins work."""

    def __init__(self, server, other, ports, severity):
        self.server, self.other, self.port = server, other, ports[0]
        self.away, self.down = severity.away, severity.down
        self.address, self.other_address = (f"{HERE}:{port}" for port in ports)

    def restarted_server(self, begin):
        """An administrator stops the server under load, and starts it again."""
        begin()
        time.sleep(0.5)
        self.server.stop()
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


def diskless_root_taken_over(server, golden):
    """The server is lost under load and stays away; another one of the store goes on with the machine's disk."""
    with Site(server.sockets, [MACHINE]), contextlib.ExitStack() as last:
        other = last.enter_context(Server(server.binary, server.home + "2"))
        other.command("init", "--store", os.path.join(server.home, "store"))
        addresses = [f"{HERE}:{free_port()}" for _ in range(2)]
        for one, address in zip((server, other), addresses):
            one.configure("serve", f"lease_seconds = {LEASE}")
            one.start(address, options=["--insecure"])
        server.command("machine", "assign", MACHINE.mac, "--from", "debian", "--name", "lab-root", "--method", "nbd",
                       "--write-through")
        process, _ = netboot.start(server, "--also", addresses[1])
        last.callback(process.wait)
        last.callback(process.terminate)
        guest = last.enter_context(Guest(golden, None, memory=768, cpus=2, card=Card(MACHINE.tap, MACHINE.mac)))
        guest.start().ready(timeout=400)
        # Each line is a write that the root has on stable storage, by the guest's clock.
        guest.execute("(while [ ! -e /run/stop ]; do dd if=/proc/uptime of=/var/tick conv=fsync 2>/run/dd.log || break; "
                      "cut -d ' ' -f 1 /proc/uptime >>/run/ticks; done; touch /run/stopped) </dev/null >/dev/null 2>&1 &")
        guest.execute("find /usr -xdev -type f | sort > /run/files && sleep 3")
        guest.execute("(fsload /var/load 50 >/run/load.log 2>&1 && touch /run/loaded) </dev/null >/dev/null 2>&1 & "
                      "(xargs -d '\\n' -a /run/files md5sum >/run/sums && touch /run/read) </dev/null >/dev/null 2>&1 &")
        time.sleep(0.5)
        server.crash()
        guest.execute("until [ -e /run/read ] && [ -e /run/loaded ]; do sleep 0.1; done; touch /run/stop; "
                      "until [ -e /run/stopped ]; do sleep 0.1; done", timeout=300)
        guest.execute("echo 3 > /proc/sys/vm/drop_caches && md5sum --quiet -c /run/sums && fsload --check /var/load",
                      timeout=180)
        ticks = [float(tick) for tick in guest.execute("tr '\\n' ' ' </run/ticks")["note"].split()]
        files = guest.execute("wc -l </run/sums")["note"]
        errors = guest.execute("dmesg | grep -ciE 'i/o error|aborting journal|remounting' || true")["note"]
        guest.poweroff(timeout=120)
        other.stop()
        other.start(addresses[1], options=["--insecure"])
        fsck(other, "lab-root", "-n")
        other.stop()
    gaps = [after - before for before, after in zip(ticks, ticks[1:])]
    return {"files": int(files), "errors": int(errors), "lease": LEASE, "longest_wait": round(max(gaps), 1),
            "median_wait": round(sorted(gaps)[len(gaps) // 2], 3)}


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
