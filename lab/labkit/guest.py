"""One real guest: starts QEMU, listens to the agent inside, stops it in an orderly way."""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass

from . import LabError, accel
from .address import blockdev
from .golden import build
from .qmp import Qmp
from .shell import tail

PROFILES = {
    "full": "",  # systemd and everything it starts
    "bare": "init=/usr/local/sbin/lab-init",  # the same kernel and file system, a shell as init
}
COUNTERS = ("rd_bytes", "wr_bytes", "rd_operations", "wr_operations", "flush_operations", "unmap_operations")


OVMF = "/usr/share/OVMF"
"""Where Debian's package ovmf puts UEFI for virtual machines."""


@dataclass(frozen=True)
class Card:
    """The network card that a machine without a disk boots from."""

    tap: str
    """The tap device that it is plugged into."""
    mac: str
    model: str = "virtio-net-pci"
    ipxe: bool = True
    """Whether it has iPXE of its own, as QEMU's cards do; else the machine's firmware boots from it."""
    cable: str | None = None
    """The socket of a cable (`delay.py`) between it and the tap device."""

    def options(self):
        """QEMU's options for it."""
        net = f"tap,id=n1,ifname={self.tap},script=no,downscript=no"
        if self.cable:
            net = f"stream,id=n1,server=off,addr.type=unix,addr.path={self.cable}"
        rom = "" if self.ipxe else ",romfile="
        return ["-netdev", net, "-device", f"{self.model},netdev=n1,mac={self.mac},bootindex=1{rom}"]


class Guest:
    """A QEMU process with one virtio disk and the laboratory's agent inside.

    `disk` is an NBD address or a file.  `firmware` boots through SeaBIOS and GRUB from the
    disk alone; otherwise the golden image's kernel and tiny initial RAM disk are given to
    QEMU.  `network` adds a card on QEMU's user network: the host is 10.0.2.2.  `more` are
    further disks, which the guest sees as /dev/vdb, /dev/vdc ...  A guest with a `card` boots from
    that, and from its disk, if it has one, when that comes to nothing; `uefi` is "pxe" or "http"
    for a machine with UEFI, by what that is to boot; `direct` is kernel, initial RAM disk and
    parameters for one whose QEMU is given them.
    Use it as a context manager: leaving kills what still runs.
    """

    def __init__(self, golden, disk, *, name="guest", profile="bare", firmware=False, memory=256, cpus=1,
                 network=False, more=(), card=None, uefi=None, direct=None):
        self.name = name
        self.directory = tempfile.mkdtemp(prefix="lab-guest.")
        self.console = os.path.join(self.directory, "console.log")
        self.messages = os.path.join(self.directory, "qemu.log")
        kernel = os.path.join(golden, "vmlinuz")
        self.accel = accel.choose(kernel)
        self.process = self.monitor = self.channel = None
        self.events, self.partial, self.began = [], b"", 0.0
        self.command = [
            accel.qemu(), "-name", name, "-machine", "pc", *accel.flags(self.accel), "-smp", str(cpus),
            "-m", str(memory), "-nodefaults", "-display", "none", "-no-reboot", "-device", "virtio-rng-pci",
            "-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console",
            "-chardev", f"socket,id=lab,path={self._path('lab')},server=on,wait=off", "-serial", "chardev:lab",
            "-qmp", f"unix:{self._path('qmp')},server=on,wait=off"]
        if uefi:
            self.command += self._uefi(uefi)
        if card:
            self.command += card.options()
        if direct:
            self.command += ["-kernel", direct[0], "-initrd", direct[1], "-append", direct[2]]
        if disk is None:
            return
        for device in blockdev(disk):
            self.command += ["-blockdev", json.dumps(device)]
        self.command += ["-device", f"virtio-blk-pci,id=vd0,drive=disk0,bootindex={2 if card else 1}"]
        for number, path in enumerate(more, 1):
            for device in blockdev(path, f"disk{number}"):
                self.command += ["-blockdev", json.dumps(device)]
            self.command += ["-device", f"virtio-blk-pci,drive=disk{number}"]
        if not firmware:
            parameters = f"{build.manifest(golden)['cmdline']} {PROFILES[profile]}"
            self.command += ["-kernel", kernel, "-initrd", os.path.join(golden, "initrd-tiny.img"),
                             "-append", parameters.strip()]
        if network:
            self.command += ["-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile="]

    def _path(self, name):
        return os.path.join(self.directory, name)

    def _uefi(self, way):
        """QEMU's options for OVMF with settings of its own."""
        try:
            shutil.copy(f"{OVMF}/OVMF_VARS_4M.fd", self._path("settings"))
        except FileNotFoundError as e:
            raise LabError("UEFI for virtual machines is not installed; run scripts/setup netboot") from e
        options = ["-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={OVMF}/OVMF_CODE_4M.fd",
                   "-drive", f"if=pflash,unit=1,format=raw,file={self._path('settings')}"]
        if way == "http":
            for version in ("IPv4", "IPv6"):
                options += ["-fw_cfg", f"name=opt/org.tianocore/{version}PXESupport,string=no"]
        return options

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self):
        """Starts QEMU; returns when its monitor answers."""
        self.began = time.monotonic()
        with open(self.messages, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while self.monitor is None:
            if self.process.poll() is not None:
                raise LabError(f"guest {self.name}: QEMU ended early: {tail(self.messages)}")
            if time.monotonic() - self.began > 30:
                raise self.trouble("QEMU did not open its monitor")
            with contextlib.suppress(OSError):
                self.monitor = Qmp(self._path("qmp"))
                break
            time.sleep(0.01)
        self.channel = socket.socket(socket.AF_UNIX)
        self.channel.connect(self._path("lab"))
        return self

    def ready(self, timeout=180):
        """Waits until the system inside is up; returns the seconds since QEMU started."""
        return self._wait("ready", timeout)["host_seconds"]

    def execute(self, command, timeout=120, check=True):
        """Runs a shell command inside; returns {rc, seconds, note}, note being its last line of output."""
        self.channel.sendall(f"exec {command}\n".encode())
        result = self._wait("result", timeout)
        if check and result["rc"]:
            raise self.trouble(f"{command!r} failed inside ({result['rc']}): {result['note']}")
        return result

    def poweroff(self, timeout=60):
        """Shuts the system down in an orderly way and waits for QEMU's end."""
        self.channel.sendall(b"poweroff\n")
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired as e:
            raise self.trouble("does not power off") from e
        if code:
            raise self.trouble(f"QEMU ended with {code}")

    def counters(self):
        """QEMU's own count of what the disk did."""
        for device in self.monitor.command("query-blockstats"):
            if "vd0" in device.get("qdev", ""):
                return {name: device["stats"][name] for name in COUNTERS}
        raise LabError(f"guest {self.name}: QEMU does not know its disk")

    def close(self):
        """Kills what still runs and removes the logs (LAB_KEEP=1 keeps them)."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for part in (self.channel, self.monitor):
            if part:
                with contextlib.suppress(OSError):
                    part.close()
        if not os.environ.get("LAB_KEEP"):
            shutil.rmtree(self.directory, ignore_errors=True)

    def trouble(self, what):
        """What is wrong with it, and the ends of its console and of what QEMU said; to be raised."""
        return LabError(f"guest {self.name}: {what}\n--- its console ends with\n{tail(self.console)}\n"
                        f"--- QEMU said\n{tail(self.messages)}")

    def _wait(self, event, timeout):
        end = time.monotonic() + timeout
        while True:
            while self.events:
                message = self.events.pop(0)
                if message.get("event") == event:
                    return message
            left = end - time.monotonic()
            if left <= 0:
                raise self.trouble(f"no `{event}` within {timeout:g} s")
            readable, _, _ = select.select([self.channel], [], [], min(left, 1.0))
            data = self.channel.recv(65536) if readable else None
            if data == b"":
                raise self.trouble(f"QEMU went away before `{event}`")
            if data:
                self._feed(data)

    def _feed(self, data):
        self.partial += data
        *lines, self.partial = self.partial.split(b"\n")
        for line in lines:
            at = line.find(b"LAB {")
            if at < 0:
                continue
            # What else writes to the serial line may have cut a message; the agent's own are whole.
            with contextlib.suppress(ValueError):
                message = json.loads(line[at + 4:].decode("utf-8", "replace"))
                message["host_seconds"] = round(time.monotonic() - self.began, 2)
                self.events.append(message)
