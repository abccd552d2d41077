"""What the image is made of, and the name of that."""

import hashlib
import os

from .. import LAB
from ..shell import read_bytes

SUITE = "bookworm"
PACKAGES = ["linux-image-cloud-amd64", "systemd-sysv", "udev", "initramfs-tools", "zstd", "nbd-client",
            "kmod", "iproute2", "netbase", "e2fsprogs"]
BUSYBOX = "busybox-static"
"""Only its one binary is used, in the tiny initial RAM disk."""

EPOCH = 1735689600
"""The time stamp of everything in the image (2025-01-01): the same packages give the same bytes."""

SIZE = 2 << 30
"""Bytes of the disk."""

# Fixed identities, for the same reason.
DISK_GUID = "5a0c5a0c-0001-4a00-8000-000000000001"
ROOT_PARTUUID = "5a0c5a0c-0001-4a00-8000-0000000000a1"
BIOS_PARTUUID = "5a0c5a0c-0001-4a00-8000-0000000000b1"
ROOT_FSUUID = "5a0c5a0c-0001-4a00-8000-0000000000f1"
HASH_SEED = "5a0c5a0c-0001-4a00-8000-0000000000e1"

ROOT_OFFSET = 16 << 20
"""Byte at which the root file system starts."""

KERNEL_PARAMETERS = (f"root=PARTUUID={ROOT_PARTUUID} rw console=ttyS0,115200 quiet net.ifnames=0 "
                     "systemd.show_status=0")

GUEST_FILES = {"agent": "usr/local/sbin/lab-agent", "bare-init": "usr/local/sbin/lab-init",
               "fsload": "usr/local/bin/fsload", "agent.service": "etc/systemd/system/lab-agent.service"}


def key():
    """A short name of all that decides what the image holds: the cache's key."""
    h = hashlib.sha256()
    for folder in (os.path.join(LAB, "guest"), os.path.dirname(os.path.realpath(__file__))):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                h.update(name.encode() + b"\0" + read_bytes(path))
    return h.hexdigest()[:12]
