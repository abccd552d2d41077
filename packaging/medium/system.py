"""The system on a medium: a small Debian, the scripts that borrow, and what the user adds."""

import hashlib
import os
import shutil
import tempfile

from labkit import WORK, LabError
from labkit.golden import packages
from labkit.golden.system import NOISE, bootstrap
from labkit.shell import locked, read_bytes, run, write_file

HERE = os.path.dirname(os.path.realpath(__file__))
TREE = os.path.join(HERE, "tree")
"""Files of ours in the system."""

BASE = ("linux-image-amd64", "systemd-sysv", "udev", "initramfs-tools", "busybox", "zstd", "kmod", "iproute2",
        "netbase", "e2fsprogs", "iputils-ping", "less", "nano")

MEMORY, ROOM = "/dev/shm", 3 << 30
"""Where a tree is unpacked when so many bytes are free there; else below the cache."""


def workplace():
    """A fresh directory for the trees of one build."""
    fits = os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free > ROOM
    os.makedirs(WORK, exist_ok=True)
    work = tempfile.mkdtemp(prefix="medium.", dir=MEMORY if fits else WORK)
    os.chmod(work, 0o755)
    return work


def base(include, say):
    """A folder with `base.tar`, Debian's packages as they are, and `vmlinuz`; kept in the cache for one list of
    packages."""
    home = os.path.join(WORK, "medium")
    out = os.path.join(home, _key(include))
    with locked(os.path.join(WORK, "medium.lock")):
        if not os.path.exists(out):
            say(f"installing Debian {packages.SUITE}: {len(BASE) + len(include)} packages and what they need")
            shutil.rmtree(home, ignore_errors=True)
            part = out + ".part"
            os.makedirs(part)
            work = workplace()
            try:
                root = os.path.join(work, "root")
                bootstrap(packages.Recipe("medium", (*BASE, *include)), root, os.path.join(WORK, "debs"))
                # The package that the laboratory's own images take a program from.
                shutil.rmtree(root + "/opt/lab")
                shutil.copy(f"{root}/boot/vmlinuz-{kernel(root)}", os.path.join(part, "vmlinuz"))
                run(["tar", "-C", root, "--numeric-owner", "--xattrs", "--sort=name", "-cf",
                     os.path.join(part, "base.tar"), "."])
            finally:
                shutil.rmtree(work, ignore_errors=True)
            os.rename(part, out)
    return out


def kernel(root):
    """The kernel's version."""
    return os.listdir(root + "/lib/modules")[0]


def unpack(folder, root, binary, add, password):
    """The whole system below `root`: the base, our files, the program, the user's own files, root's password, and the
    initial RAM disk of all that."""
    os.makedirs(root)
    run(["tar", "-C", root, "--numeric-owner", "--xattrs", "-xpf", os.path.join(folder, "base.tar")])
    write_file(root + "/etc/hostname", "sojourn\n")
    write_file(root + "/etc/hosts", "127.0.0.1 localhost sojourn\n")
    write_file(root + "/etc/fstab", "# the root is put together by the initial RAM disk\n")
    write_file(root + "/etc/machine-id", "")
    run(["sed", "-i", "s/^root:[^:]*:/root::/", root + "/etc/shadow"])
    for unit in NOISE:
        place = f"{root}/etc/systemd/system/{unit}"
        if not os.path.lexists(place):
            os.symlink("/dev/null", place)
    for place in ("oldroot", "media/borrowed"):
        os.makedirs(os.path.join(root, place))
    program = os.path.join(root, "usr/bin/sojourn")
    run(["strip", "-o", program, binary])
    os.chmod(program, 0o755)
    for tree in (TREE, *add):
        if not os.path.isdir(tree):
            raise LabError(f"{tree} is not a directory")
        run(["cp", "-a", "--no-preserve=ownership", tree + "/.", root])
    if password is not None:
        run(["chroot", root, "chpasswd"], input=f"root:{password}\n")
    missing = run(["chroot", root, "sh", "-c", "sojourn --version >/dev/null 2>&1 || ldd /usr/bin/sojourn; true"])
    if missing:
        raise LabError(f"{binary} does not run on Debian {packages.SUITE}:\n{missing}")
    run(["chroot", root, "mkinitramfs", "-o", "/boot/initrd.img", kernel(root)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SOURCE_DATE_EPOCH": str(packages.EPOCH)})


def boot_files(root):
    """The kernel and the initial RAM disk, taken out of the system: they lie on a partition of their own."""
    return {"vmlinuz": read_out(f"{root}/boot/vmlinuz-{kernel(root)}"), "initrd": read_out(root + "/boot/initrd.img")}


def read_out(path):
    """A file's content; the file is removed."""
    content = read_bytes(path)
    os.unlink(path)
    return content


def _key(include):
    text = " ".join((packages.SUITE, *BASE, *sorted(include)))
    return hashlib.sha256(text.encode() + read_bytes(os.path.realpath(__file__))).hexdigest()[:12]
