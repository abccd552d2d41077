"""Which accelerator QEMU can really use here.

/dev/kvm may be there and even start a machine whose kernel then never comes up (seen
with nested virtualisation), so the only honest test is to boot a kernel and wait for its
first line.  The verdict is kept for as long as the machine is up.
"""

import os
import select
import subprocess
import time

from . import WORK
from .shell import read_text, write_file

PATIENCE = 6.0
"""Seconds a kernel under KVM has for its first line; a healthy one needs less than one."""


def qemu():
    """The QEMU to use; LAB_QEMU overrides."""
    return os.environ.get("LAB_QEMU", "qemu-system-x86_64")


def flags(accel):
    """QEMU's options for an accelerator."""
    # Under TCG the plain CPU model is 10-25 % cheaper than `max`.
    return ["-accel", accel, "-cpu", "host" if accel == "kvm" else "qemu64"]


def choose(kernel):
    """`kvm` when a kernel comes up under it, else `tcg`; LAB_ACCEL overrides."""
    forced = os.environ.get("LAB_ACCEL")
    if forced:
        return forced
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    kept = os.path.join(WORK, "accel")
    if os.path.exists(kept):
        accel, _, when = read_text(kept).strip().partition(" ")
        if when == boot and accel in ("kvm", "tcg"):
            return accel
    accel = "kvm" if _kernel_speaks(kernel) else "tcg"
    write_file(kept, f"{accel} {boot}\n")
    return accel


def _kernel_speaks(kernel):
    command = [qemu(), *flags("kvm"), "-m", "128", "-nodefaults", "-display", "none", "-no-reboot",
               "-serial", "stdio", "-kernel", kernel,
               "-append", "console=ttyS0 earlyprintk=ttyS0,115200 panic=-1"]
    end, seen = time.monotonic() + PATIENCE, b""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as machine:
        try:
            while time.monotonic() < end:
                ready, _, _ = select.select([machine.stdout], [], [], 0.2)
                if not ready:
                    continue
                data = os.read(machine.stdout.fileno(), 65536)
                seen += data
                if b"Linux version" in seen:
                    return True
                if not data:
                    return False
        finally:
            machine.kill()
    return False
