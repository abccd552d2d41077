"""A tiny initial RAM disk, without udev, for guests that must boot quickly."""

import os
import subprocess

from .. import LAB
from ..shell import read_bytes, read_text
from . import packages

MODULES = ["virtio_pci", "virtio_blk", "virtio_rng", "crc32c_generic", "ext4"]
APPLETS = ["sh", "mount", "insmod", "cat", "echo", "sleep", "switch_root"]
DIRECTORIES = ["bin", "sbin", "mod", "proc", "sys", "dev", "root", "etc"]


class Cpio:
    """A `newc` archive, the format of initial RAM disks (Linux, Documentation/driver-api/early-userspace)."""

    def __init__(self):
        self.parts, self.inode = [], 0

    def add(self, name, mode, data=b""):
        """Adds one entry; `data` is the content, or a link's target."""
        self.inode += 1
        path = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        record = b"070701" + "".join(f"{v:08X}" for v in fields).encode() + path
        record += b"\0" * (-len(record) % 4) + data
        self.parts.append(record + b"\0" * (-len(record) % 4))

    def finish(self):
        """The whole archive."""
        self.add("TRAILER!!!", 0)
        return b"".join(self.parts)


def tiny(root, kernel):
    """The archive, with what is needed of the system unpacked at `root`."""
    modules = os.path.join(root, "lib/modules", kernel)
    order = load_order(read_text(os.path.join(modules, "modules.dep")))
    archive = Cpio()
    for d in DIRECTORIES:
        archive.add(d, 0o040755)
    archive.add("init", 0o100755, read_bytes(os.path.join(LAB, "guest/tiny-init")))
    archive.add("bin/busybox", 0o100755, busybox(root))
    for a in APPLETS:
        archive.add("bin/" + a, 0o120777, b"busybox")
    archive.add("modules", 0o100644, "".join(os.path.basename(m) + "\n" for m in order).encode())
    for m in order:
        archive.add("mod/" + os.path.basename(m), 0o100644, read_bytes(os.path.join(modules, m)))
    return archive.finish()


def load_order(dependencies):
    """The files of MODULES and of what they need, in an order that loads."""
    known = {}
    for line in dependencies.splitlines():
        path, needs = line.split(":")
        known[_module(path)] = (path, needs.split())
    order = []

    def want(name):
        if name not in known:  # built into the kernel
            return
        path, needs = known[name]
        for n in reversed(needs):
            want(_module(n))
        if path not in order:
            order.append(path)

    for m in MODULES:
        want(m)
    return order


def _module(path):
    return os.path.basename(path).removesuffix(".ko").replace("-", "_")


def busybox(root):
    """The static busybox out of the package that bootstrap left in the image; the package is removed."""
    folder = os.path.join(root, "opt/lab")
    package = next(f for f in os.listdir(folder) if f.startswith(packages.BUSYBOX + "_"))
    path = os.path.join(folder, package)
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE) as tar:
        binary = subprocess.check_output(["tar", "-xO", "./bin/busybox"], stdin=tar.stdout)
    os.unlink(path)
    os.rmdir(folder)
    return binary
