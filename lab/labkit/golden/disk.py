"""The disk: GPT, an ext4 root made from a directory, GRUB for BIOS; all by writing to files."""

import os
import struct
import time

from .. import LabError
from ..shell import read_bytes, run, write_file
from . import packages

SECTOR = 512
MIB = 1 << 20
BIOS_OFFSET, BIOS_LENGTH = 1 * MIB, 1 * MIB
GRUB = "/usr/lib/grub/i386-pc"
GRUB_MODULES = ["biosdisk", "part_gpt", "ext2", "normal", "linux", "echo", "serial", "terminal", "search",
                "search_fs_uuid", "configfile", "boot"]


def assemble(root, work, raw, size):
    """Makes the image file `raw`, a disk of `size` bytes, of the system unpacked at `root`."""
    with open(raw, "wb") as f:
        f.truncate(size)
    length = size - MIB - packages.ROOT_OFFSET
    _partition(raw, length)
    _same_times(root)
    _file_system(root, raw, length)
    _grub(work, raw)


def _environment():
    return dict(os.environ, E2FSPROGS_FAKE_TIME=str(packages.EPOCH), SOURCE_DATE_EPOCH=str(packages.EPOCH),
                PATH="/usr/sbin:/sbin:" + os.environ["PATH"])


def _partition(raw, length):
    kinds = [(1, packages.ROOT_OFFSET, length, "0FC63DAF-8483-4772-8E79-3D69D8477DE4", packages.ROOT_PARTUUID),
             (14, BIOS_OFFSET, BIOS_LENGTH, "21686148-6449-6E6F-744E-656564454649", packages.BIOS_PARTUUID)]
    table = f"label: gpt\nlabel-id: {packages.DISK_GUID}\nfirst-lba: 34\n"
    for number, start, size, kind, uuid in kinds:
        table += f"{raw}{number} : start={start // SECTOR}, size={size // SECTOR}, type={kind}, uuid={uuid}\n"
    run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", raw], input=table, env=_environment())


def _same_times(root):
    """No time stamps of this build: two builds of the same packages are to be equal."""
    for folder, folders, files in os.walk(root):
        for name in [*files, *folders, "."]:
            path = os.path.join(folder, name)
            if os.lstat(path).st_mtime > packages.EPOCH:
                os.utime(path, (packages.EPOCH, packages.EPOCH), follow_symlinks=False)


def _file_system(root, raw, length):
    # Nothing lazy, or the guest would write for minutes.
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-d", root, "-L", "labroot", "-U", packages.ROOT_FSUUID,
         "-O", "^orphan_file,^metadata_csum_seed",
         "-E", f"offset={packages.ROOT_OFFSET},hash_seed={packages.HASH_SEED},lazy_itable_init=0,"
               "lazy_journal_init=0,root_owner=0:0",
         "-m", "1", raw, f"{length // 1024}k"], env=_environment())
    # Change and access times come from the directory that was copied: set them in the image.
    inside = f"{raw}?offset={packages.ROOT_OFFSET}"
    stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(packages.EPOCH))
    commands = [f"sif <{inode}> {field} {stamp}" for inode in _used_inodes(inside) for field in ("ctime", "atime")]
    run(["debugfs", "-w", "-f", "/dev/stdin", inside], input="\n".join(commands) + "\n", env=_environment())


def _used_inodes(file_system):
    total, free = 0, set()
    for line in run(["dumpe2fs", file_system], env=_environment()).splitlines():
        if line.startswith("Inode count:"):
            total = int(line.split()[2])
        elif line.strip().startswith("Free inodes: "):
            for part in line.split(":")[1].split(","):
                low, _, high = part.strip().partition("-")
                if low:
                    free.update(range(int(low), int(high or low) + 1))
    return [inode for inode in range(11, total + 1) if inode not in free]


def _grub(work, raw):
    """boot.img into the MBR, core.img into the BIOS boot partition, their block lists set by hand."""
    early, core = os.path.join(work, "early.cfg"), os.path.join(work, "core.img")
    write_file(early, f"search --no-floppy --fs-uuid --set=root {packages.ROOT_FSUUID}\n"
                      "set prefix=($root)/boot/grub\n")
    run(["grub-mkimage", "-O", "i386-pc", "-c", early, "-p", "/boot/grub", "-o", core, *GRUB_MODULES])
    first = bytearray(read_bytes(GRUB + "/boot.img")[:440])
    second = bytearray(read_bytes(core))
    if len(second) > BIOS_LENGTH:
        raise LabError(f"GRUB's core image has {len(second)} bytes, its partition {BIOS_LENGTH}")
    struct.pack_into("<Q", first, 0x5C, BIOS_OFFSET // SECTOR)
    struct.pack_into("<Q", second, 0x1F4, BIOS_OFFSET // SECTOR + 1)
    with open(raw, "r+b") as f:
        f.write(first)
        f.seek(BIOS_OFFSET)
        f.write(second)
