"""What the image is made of, and the name of that."""

import hashlib
import os
from dataclasses import dataclass

from .. import LAB, TOP
from ..shell import read_bytes

SUITE = "bookworm"
BASE = ("linux-image-cloud-amd64", "systemd-sysv", "udev", "initramfs-tools", "zstd", "nbd-client",
        "kmod", "iproute2", "netbase", "e2fsprogs", "open-iscsi")
BUSYBOX = "busybox-static"
"""Only its one binary is used, in the tiny initial RAM disk."""

EPOCH = 1735689600
"""The time stamp of everything in the image (2025-01-01): the same packages give the same bytes."""

# Fixed identities, for the same reason.
DISK_GUID = "5a0c5a0c-0001-4a00-8000-000000000001"
ROOT_PARTUUID = "5a0c5a0c-0001-4a00-8000-0000000000a1"
BIOS_PARTUUID = "5a0c5a0c-0001-4a00-8000-0000000000b1"
ESP_PARTUUID = "5a0c5a0c-0001-4a00-8000-0000000000c1"
ROOT_FSUUID = "5a0c5a0c-0001-4a00-8000-0000000000f1"
HASH_SEED = "5a0c5a0c-0001-4a00-8000-0000000000e1"

ROOT_OFFSET = 16 << 20
"""Byte at which the root file system starts."""

# An emulated machine on a busy host may fail the kernel's test of its timer.
KERNEL_PARAMETERS = (f"root=PARTUUID={ROOT_PARTUUID} rw console=ttyS0,115200 quiet net.ifnames=0 "
                     "systemd.show_status=0 no_timer_check")

GUEST_FILES = {"agent": "usr/local/sbin/lab-agent", "bare-init": "usr/local/sbin/lab-init",
               "fsload": "usr/local/bin/fsload", "agent.service": "etc/systemd/system/lab-agent.service"}


DRACUT_MODULE = os.path.join(TOP, "packaging/dracut/95sojourn")
"""What puts the keeper of a disk into an initial RAM disk of dracut."""


@dataclass(frozen=True)
class Recipe:
    """What one image holds."""

    name: str
    """Its place in the cache."""
    packages: tuple = BASE
    """Debian's packages, beside those of the variant and what they need."""
    variant: str = "minbase"
    """mmdebstrap's set of packages to begin with."""
    size: int = 2 << 30
    """Bytes of the disk."""
    documents: bool = False
    """Whether manuals and translations stay."""


GOLDEN = Recipe("golden")
"""What guests boot in the demonstration and the tests: small."""

GENERIC = Recipe("generic", ("linux-image-amd64", *(p for p in BASE if p != "linux-image-cloud-amd64")))
"""The same with the kernel for real machines, which knows the cards that those have."""

DRACUT = Recipe("dracut", (*(p for p in BASE if p != "initramfs-tools"), "dracut", "dracut-network", "procps"))
"""The same with the initial RAM disk of Fedora and its kin, and in that our module for machines without a disk."""

BENCH = Recipe("bench", (*BASE, "openssh-server", "git", "curl", "man-db", "rsync", "python3", "perl",
                         "tcpdump", "bash-completion", "less", "sudo", "wget"),
               variant="important", size=1 << 30, documents=True)
"""A server's system, half of the disk in use: what stores are compared on."""

REBUILT = Recipe("bench-rebuilt", (*BENCH.packages, "nginx-light", "gdb-minimal", "sqlite3", "tmux", "strace", "htop",
                                   "jq", "lsof", "iotop-c", "sysstat", "socat", "mtr-tiny", "whois", "unzip", "zip",
                                   "tree", "screen", "ethtool", "nmap", "redis-server", "lua5.4", "pv", "ncdu",
                                   "fio", "hdparm"),
                 variant="important", size=1 << 30, documents=True)
"""The same, built anew with 25 more packages."""


def key(recipe):
    """A short name of all that decides what the image holds: the cache's key."""
    h = hashlib.sha256(recipe.name.encode())
    own = [DRACUT_MODULE] if recipe is DRACUT else []
    for folder in (os.path.join(LAB, "guest"), os.path.dirname(os.path.realpath(__file__)), *own):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                h.update(name.encode() + b"\0" + read_bytes(path))
    return h.hexdigest()[:12]
