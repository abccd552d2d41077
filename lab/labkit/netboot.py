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

from . import LabError
from .guest import Guest
from .shell import free_port, run, tail, wait_until

BRIDGE, HERE = "br0", "10.77.0.1"
OTHER = "10.77.0.2"
"""The address of the DHCP server that is not ours."""

MACHINES = {"nbd": "52:54:00:77:00:01", "iscsi": "52:54:00:77:00:02"}
"""Two machines, by the way in which they reach their disks."""

STRANGER = "52:54:00:77:00:99"
"""A machine that nobody knows."""

IPV4, UDP = 0x0800, 17
"""Numbers of protocols."""

PORT = 8067
"""The HTTP port of `sojourn netboot`."""


class Site:
    """A bridge with the server's address, a tap device for each machine, and the other DHCP server."""

    def __init__(self, directory):
        self.log = os.path.join(directory, "dnsmasq.log")
        self.leases = os.path.join(directory, "dnsmasq.leases")
        self.other = None

    def __enter__(self):
        for line in (f"link set lo up, link add {BRIDGE} type bridge, addr add {HERE}/24 dev {BRIDGE}, "
                     f"link set {BRIDGE} up, link add site0 type veth peer name site1, link add probe0 type veth "
                     f"peer name probe1, link set site0 master {BRIDGE} up, link set probe1 master {BRIDGE} up, "
                     "link set probe0 up").split(", "):
            run(["ip", *line.split()])
        for method in MACHINES:
            run(["ip", "tuntap", "add", f"tap-{method}", "mode", "tap"])
            run(["ip", "link", "set", f"tap-{method}", "master", BRIDGE, "up"])
        dnsmasq = ("dnsmasq --keep-in-foreground --port=0 --interface=site1 --bind-interfaces --conf-file=/dev/null "
                   f"--user=root --pid-file= --dhcp-leasefile={self.leases} --log-dhcp --log-facility={self.log} "
                   "--no-ping --dhcp-range=10.77.0.100,10.77.0.150")
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
    line = [server.binary, "--home", server.home, "netboot", "--interface", BRIDGE, *options]
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


def boot(golden, method):
    """Boots a machine to its system; what it found there."""
    with Guest(golden, None, name=method, memory=768, card=(f"tap-{method}", MACHINES[method])) as guest:
        seconds = guest.start().ready(timeout=400)
        root = guest.execute("findmnt -no SOURCE /")["note"]
        host = guest.execute("sed -n 's/.*nbdroot=[^ ]*\\/\\([^ ]*\\).*/\\1/p' /proc/cmdline")["note"]
        login = guest.execute("systemctl is-active serial-getty@ttyS0.service", timeout=200)["note"]
        guest.execute(f"echo {method} > /var/marker && sync")
        guest.poweroff(timeout=120)
        return {"boot_seconds": seconds, "root": root, "disk": host, "login": login}


def blank_machines(server, golden):
    """Two machines without a disk find this server beside another DHCP server, and start: one by NBD with
    the kernel out of its disk, one by iSCSI from the unmodified image. A third one gets nothing."""
    port, iscsi = free_port(), free_port()
    with Site(server.sockets) as site:
        server.start(f"{HERE}:{port}", options=["--iscsi", f"{HERE}:{iscsi}", "--insecure"])
        for method, mac in MACHINES.items():
            server.command("machine", "assign", mac, "--from", "debian", "--name", f"lab-{method}",
                           "--method", method)
        process, log = start(server)
        try:
            known = site.offers(MACHINES["nbd"], 3)
            stranger = site.offers(STRANGER, 3)
            with concurrent.futures.ThreadPoolExecutor(len(MACHINES)) as pool:
                booted = dict(zip(MACHINES, pool.map(lambda method: boot(golden, method), MACHINES)))
        except LabError as e:
            raise LabError(f"{e}\n--- netboot said\n{tail(log)}\n--- the server said\n{tail(server.log)}\n"
                           f"--- the other DHCP server said\n{tail(site.log)}") from e
        finally:
            process.terminate()
            code = process.wait(30)
        if code:
            raise LabError(f"netboot ended with {code}\n{tail(log)}")
        waiting = [seen["mac"] for seen in server.command("machine", "list")["waiting"]]
        written = {method: server.command("disk", "show", f"lab-{method}")["private_bytes"] for method in MACHINES}
        server.stop()
    return {"known_offers": known, "stranger_offers": stranger, "waiting": waiting, "written": written} | booted
