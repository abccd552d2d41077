"""Machines without a disk, in a network of their own that has a DHCP server which is not ours.

The process that runs this is in a network namespace of its own (`unshare --net`): everything
here ends with it, and nothing of the host's network is touched.
"""

import concurrent.futures
import contextlib
import os
import socket
import struct
import subprocess
import time
from dataclasses import dataclass

from . import LabError
from .golden import build, packages
from .guest import Card, Guest
from .shell import free_port, read_text, run, tail, wait_until

BRIDGE, HERE = "br0", "10.77.0.1"
OTHER = "10.77.0.2"
"""The address of the DHCP server that is not ours."""


@dataclass(frozen=True)
class Machine:
    """A machine without a disk."""

    name: str
    """Its disk is lab- and this."""
    number: int
    """Tells its card from those of the others."""
    method: str
    """How it reaches its disk."""
    uefi: str | None = None
    """By what its UEFI boots, "pxe" or "http"; None for a BIOS."""
    card: str = "virtio-net-pci"
    ipxe: bool = True
    """Whether its card has iPXE."""
    image: str = "debian"

    @property
    def mac(self):
        """The address of its card."""
        return f"52:54:00:77:00:{self.number:02x}"

    @property
    def tap(self):
        """The tap device that its card is plugged into."""
        return f"tap{self.number}"


QUICK = (Machine("nbd", 1, "nbd"), Machine("iscsi", 2, "iscsi"),
         Machine("uefi-http", 3, "nbd", uefi="http", ipxe=False))
"""One of each kind."""

OTHERS = (Machine("uefi-pxe-nbd", 4, "nbd", uefi="pxe", ipxe=False),
          Machine("uefi-pxe-iscsi", 5, "iscsi", uefi="pxe", ipxe=False),
          Machine("uefi-http-iscsi", 6, "iscsi", uefi="http", ipxe=False),
          Machine("uefi-ipxe-nbd", 7, "nbd", uefi="pxe"),
          Machine("e1000-nbd", 8, "nbd", card="e1000", image="generic"),
          Machine("e1000-iscsi", 9, "iscsi", card="e1000", image="generic"),
          Machine("e1000-uefi-iscsi", 10, "iscsi", uefi="pxe", card="e1000", image="generic"))
"""The rest. OVMF has no driver for the e1000: it uses the one that comes with iPXE on the card."""

AT_ONCE = 3
"""Machines that start at a time: their processors are emulated, but firmware waits now and then."""

STRANGER = "52:54:00:77:00:99"
"""A machine that nobody knows."""

IPV4, UDP = 0x0800, 17
"""Numbers of protocols."""

PORT = 8067
"""The HTTP port of `sojourn netboot`."""


class Site:
    """A bridge with the server's address, a tap device for each machine, and the other DHCP server.

    `options` are more of that server's; it may then be all of what machines boot from.
    """

    def __init__(self, directory, machines, options=""):
        self.machines, self.options = machines, options
        self.log = os.path.join(directory, "dnsmasq.log")
        self.leases = os.path.join(directory, "dnsmasq.leases")
        self.other = None

    def __enter__(self):
        for line in (f"link set lo up, link add {BRIDGE} type bridge, addr add {HERE}/24 dev {BRIDGE}, "
                     f"link set {BRIDGE} up, link add site0 type veth peer name site1, link add probe0 type veth "
                     f"peer name probe1, link set site0 master {BRIDGE} up, link set probe1 master {BRIDGE} up, "
                     "link set probe0 up").split(", "):
            run(["ip", *line.split()])
        for machine in self.machines:
            run(["ip", "tuntap", "add", machine.tap, "mode", "tap"])
            run(["ip", "link", "set", machine.tap, "master", BRIDGE, "up"])
        dnsmasq = ("dnsmasq --keep-in-foreground --port=0 --interface=site1 --bind-interfaces --conf-file=/dev/null "
                   f"--user=root --pid-file= --dhcp-leasefile={self.leases} --log-dhcp --log-facility={self.log} "
                   f"--no-ping --dhcp-range=10.77.0.100,10.77.0.150 {self.options}")
        inside = ("until ip link show site1 >/dev/null 2>&1; do sleep 0.05; done; "
                  f"ip addr add {OTHER}/24 dev site1 && ip link set lo up && ip link set site1 up && exec {dnsmasq}")
        self.other = subprocess.Popen(["unshare", "--net", "sh", "-c", inside], stdin=subprocess.DEVNULL)
        own = os.readlink("/proc/self/ns/net")
        wait_until("another network", lambda: os.readlink(f"/proc/{self.other.pid}/ns/net") != own, 20)
        run(["ip", "link", "set", "site1", "netns", str(self.other.pid)])
        wait_until("the other DHCP server", lambda: "IP range" in tail(self.log), 30)
        return self

    def __exit__(self, *_):
        self.other.kill()
        self.other.wait()

    def offers(self, mac, seconds):
        """The servers that make an offer to firmware with this card, within so many seconds.

        Whole packets: the kernel would give the question an address of this machine, and drop answers
        that come from one.
        """
        card = bytes.fromhex(mac.replace(":", ""))
        message = struct.pack(">BBBBIHH16x6s10x192x", 1, 1, 6, 0, 0x77, 0, 0x8000, card) + b"\x63\x82\x53\x63"
        vendor = b"PXEClient:Arch:00000:UNDI:002001"
        message += bytes([53, 1, 1, 93, 2, 0, 0, 60, len(vendor)]) + vendor + b"\xff"
        found, end = set(), time.monotonic() + seconds
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IPV4)) as s:
            s.bind(("probe0", IPV4))
            s.sendto(packet(message.ljust(300, b"\0")), ("probe0", IPV4, 0, 0, b"\xff" * 6))
            while (left := end - time.monotonic()) > 0:
                s.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    answer = s.recv(2048)
                    udp = answer[(answer[0] & 15) * 4:]
                    to_client = answer[9] == UDP and udp[2:4] == struct.pack(">H", 68)
                    if to_client and udp[8 + 28:8 + 34] == card:
                        found.add(socket.inet_ntoa(answer[12:16]))
        return sorted(found)


def packet(message):
    """A datagram from nobody's port 68 to everybody's port 67, with its IPv4 header."""
    udp = struct.pack(">HHHH", 68, 67, 8 + len(message), 0) + message
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, UDP, 0, b"\0" * 4, b"\xff" * 4)
    total = sum(struct.unpack(">10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return head[:10] + struct.pack(">H", ~total & 0xFFFF) + head[12:] + udp


def start(server, *options):
    """Starts `sojourn netboot` of the server's home; returns when it answers."""
    log = os.path.join(server.sockets, "netboot.log")
    folder = os.path.dirname(server.binary)
    helpers = [os.path.join(folder, place, "static/sojourn-diskless") for place in (".", "../diskless")]
    helper = next(filter(os.path.exists, helpers), None)
    if helper is None:
        raise LabError(f"{helpers[0]} is not there; run scripts/diskless dev")
    line = [server.binary, "--home", server.home, "netboot", "--interface", BRIDGE, "--helper", helper, *options]
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def up():
        if process.poll() is not None:
            raise LabError(f"netboot ended with {process.returncode}\n{tail(log)}")
        with contextlib.suppress(OSError), socket.create_connection((HERE, PORT), 1):
            return True
        return False

    wait_until("netboot to come up", up, 30)
    return process, log


def boot(golden, machine):
    """Boots a machine to its system; what it found there."""
    card = Card(machine.tap, machine.mac, machine.card, machine.ipxe)
    with Guest(golden, None, name=machine.name, memory=768, card=card, uefi=machine.uefi) as guest:
        seconds = guest.start().ready(timeout=400)
        root = guest.execute("findmnt -no SOURCE /")["note"]
        host = guest.execute("sed -n 's/.*sojourn.disk=[^ ]*\\/\\([^ ]*\\).*/\\1/p' /proc/cmdline")["note"]
        uefi = guest.execute("test -d /sys/firmware/efi", check=False)["rc"] == 0
        driver = guest.execute("basename $(readlink -f /sys/class/net/eth0/device/driver)")["note"]
        login = guest.execute("until systemctl is-active -q serial-getty@ttyS0; do sleep 0.2; done; "
                              "systemctl is-active serial-getty@ttyS0", timeout=300)["note"]
        guest.execute(f"echo {machine.name} > /var/marker && sync")
        guest.poweroff(timeout=120)
        return {"boot_seconds": seconds, "root": root, "disk": host, "login": login, "uefi": uefi, "driver": driver}


def blank_machines(server, golden):
    """Machines without a disk, one of each kind."""
    return _start_all(server, golden, QUICK)


def more_blank_machines(server, golden):
    """The other pairs of firmware, card and method. Only Debian's kernel for real machines knows an e1000."""
    generic = build.golden(recipe=packages.GENERIC)
    server.command("image", "import", os.path.join(generic, "golden.raw"), "generic")
    return _start_all(server, golden, OTHERS)


def _start_all(server, golden, machines):
    """Machines find this server beside another DHCP server, and start, each from its own disk. Another one
    gets nothing."""
    port, iscsi = free_port(), free_port()
    with Site(server.sockets, machines) as site:
        server.start(f"{HERE}:{port}", options=["--iscsi", f"{HERE}:{iscsi}", "--insecure"])
        for machine in machines:
            server.command("machine", "assign", machine.mac, "--from", machine.image, "--name",
                           f"lab-{machine.name}", "--method", machine.method)
        process, log = start(server)
        try:
            known = site.offers(machines[0].mac, 3)
            stranger = site.offers(STRANGER, 3)
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                results = list(pool.map(lambda machine: boot(golden, machine), machines))
        except LabError as e:
            raise LabError(f"{e}\n--- netboot said\n{tail(log)}\n--- the server said\n{tail(server.log)}\n"
                           f"--- the other DHCP server said\n{tail(site.log)}") from e
        finally:
            process.terminate()
            code = process.wait(30)
        if code:
            raise LabError(f"netboot ended with {code}\n{tail(log)}")
        waiting = [seen["mac"] for seen in server.command("machine", "list")["waiting"]]
        for machine, facts in zip(machines, results):
            facts["written"] = server.command("disk", "show", f"lab-{machine.name}")["private_bytes"]
        server.stop()
    booted = {machine.name: facts for machine, facts in zip(machines, results)}
    return {"known_offers": known, "stranger_offers": stranger, "waiting": waiting, "machines": booted}


ALONE = (Machine("bios-ipxe", 1, "local"), Machine("uefi-ipxe", 2, "local", uefi="pxe"),
         Machine("uefi-pxe", 3, "local", uefi="pxe", ipxe=False),
         Machine("uefi-http", 4, "local", uefi="http", ipxe=False))
"""Machines that have a disk, and start from the network before that."""


def own_disk(server, golden):
    """Machines that are to be left alone start from their own disks, behind the network."""
    with Site(server.sockets, ALONE) as site:
        server.start(f"{HERE}:{free_port()}", options=["--insecure"])
        for machine in ALONE:
            server.command("machine", "assign", machine.mac, "--name", f"lab-{machine.name}", "--method", "local")
        process, log = start(server)
        try:
            return {machine.name: _boot_own_disk(golden, machine, server.sockets) for machine in ALONE}
        except LabError as e:
            raise told_with_logs(e, log, site) from e
        finally:
            process.terminate()
            process.wait(30)
            server.stop()


def _boot_own_disk(golden, machine, directory):
    """Boots a machine that has a disk with the golden image; where its root is."""
    disk = os.path.join(directory, f"{machine.name}.raw")
    run(["cp", "--sparse=always", os.path.join(golden, "golden.raw"), disk])
    card = Card(machine.tap, machine.mac, machine.card, machine.ipxe)
    with Guest(golden, disk, name=machine.name, firmware=True, memory=512, card=card, uefi=machine.uefi) as guest:
        guest.start().ready(timeout=400)
        root = guest.execute("findmnt -no SOURCE /")["note"]
        guest.poweroff(timeout=120)
    os.remove(disk)
    return root


def told_with_logs(error, log, site):
    """The error with the ends of what both DHCP servers said."""
    return LabError(f"{error}\n--- netboot said\n{tail(log)}\n--- the other DHCP server said\n{tail(site.log)}")


UP, AGAIN, DONE = "DOS IS UP", "MARKED BEFORE", "DONE"
"""What a DOS says on its serial line: when it starts, when it finds what it wrote the last time, and at the end."""


def dos(server, golden):
    """A system that knows of the disk of its BIOS alone starts from one over iSCSI, and keeps what it writes there.

    LAB_DOS is the file with its disk (README.md).
    """
    image = os.environ.get("LAB_DOS", "")
    if not os.path.exists(image):
        raise LabError("LAB_DOS names no disk of a DOS; see lab/README.md")
    server.command("image", "import", image, "dos")
    machine, port, iscsi = Machine("dos", 1, "iscsi", image="dos"), free_port(), free_port()
    with Site(server.sockets, [machine]) as site:
        server.start(f"{HERE}:{port}", options=["--iscsi", f"{HERE}:{iscsi}", "--insecure"])
        server.command("machine", "assign", machine.mac, "--from", machine.image, "--name", "lab-dos", "--method",
                       machine.method)
        process, log = start(server)
        try:
            said = [_boot_dos(golden, machine) for _ in range(2)]
        except LabError as e:
            raise told_with_logs(e, log, site) from e
        finally:
            process.terminate()
            process.wait(30)
        written = server.command("disk", "show", "lab-dos")["private_bytes"]
        server.stop()
    return {"up": [UP in text for text in said], "found": [AGAIN in text for text in said], "written": written}


def _boot_dos(golden, machine):
    """Switches it on and, when it is done, off; what it said."""
    card = Card(machine.tap, machine.mac, machine.card, machine.ipxe)
    with Guest(golden, None, name=machine.name, memory=64, card=card) as guest:
        guest.start()
        wait_until("DOS to be done", lambda: DONE in read_text(guest.console), 180)
        return read_text(guest.console)
