"""The disk: GPT, an ext4 root made from a directory, GRUB for BIOS and UEFI; all by writing to files."""

import os
import struct
import time

from .. import LabError
from ..shell import read_bytes, run, write_file
from . import packages

SECTOR = 512
MIB = 1 << 20
BIOS_OFFSET, BIOS_LENGTH = 1 * MIB, 1 * MIB
ESP_OFFSET, ESP_LENGTH = 2 * MIB, 4 * MIB
"""The partition that UEFI starts from; FAT, because UEFI reads nothing else."""
GRUB = "/usr/lib/grub/i386-pc"
GRUB_MODULES = ["part_gpt", "ext2", "normal", "linux", "echo", "serial", "terminal", "search",
                "search_fs_uuid", "configfile", "boot"]


def assemble(root, work, raw, size):
    """Makes the image file `raw`, a disk of `size` bytes, of the system unpacked at `root`."""
    with open(raw, "wb") as f:
        f.truncate(size)
    length = size - MIB - packages.ROOT_OFFSET
    _partition(raw, length)
    _same_times(root)
    _file_system(root, raw, length)
    _grub_bios(work, raw)
    _grub_uefi(work, raw)


def _environment():
    return dict(os.environ, E2FSPROGS_FAKE_TIME=str(packages.EPOCH), SOURCE_DATE_EPOCH=str(packages.EPOCH),
                PATH="/usr/sbin:/sbin:" + os.environ["PATH"])


def _partition(raw, length):
    kinds = [(1, packages.ROOT_OFFSET, length, "0FC63DAF-8483-4772-8E79-3D69D8477DE4", packages.ROOT_PARTUUID),
             (14, BIOS_OFFSET, BIOS_LENGTH, "21686148-6449-6E6F-744E-656564454649", packages.BIOS_PARTUUID),
             (15, ESP_OFFSET, ESP_LENGTH, "C12A7328-F81F-11D2-BA4B-00A0C93EC93B", packages.ESP_PARTUUID)]
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


def _grub_image(work, target, *modules):
    """A GRUB that finds the root by its number and goes on with the configuration there."""
    early, image = os.path.join(work, "early.cfg"), os.path.join(work, target)
    write_file(early, f"search --no-floppy --fs-uuid --set=root {packages.ROOT_FSUUID}\n"
                      "set prefix=($root)/boot/grub\n")
    run(["grub-mkimage", "-O", target, "-c", early, "-p", "/boot/grub", "-o", image, *GRUB_MODULES, *modules])
    return image


def _grub_bios(work, raw):
    """boot.img into the MBR, core.img into the BIOS boot partition, their block lists set by hand."""
    first = bytearray(read_bytes(GRUB + "/boot.img")[:440])
    second = bytearray(read_bytes(_grub_image(work, "i386-pc", "biosdisk")))
    if len(second) > BIOS_LENGTH:
        raise LabError(f"GRUB's core image has {len(second)} bytes, its partition {BIOS_LENGTH}")
    struct.pack_into("<Q", first, 0x5C, BIOS_OFFSET // SECTOR)
    struct.pack_into("<Q", second, 0x1F4, BIOS_OFFSET // SECTOR + 1)
    with open(raw, "r+b") as f:
        f.write(first)
        f.seek(BIOS_OFFSET)
        f.write(second)


def _grub_uefi(work, raw):
    """The program at the place where UEFI looks on a disk that it does not know."""
    image, esp = _grub_image(work, "x86_64-efi"), os.path.join(work, "esp.img")
    os.utime(image, (packages.EPOCH, packages.EPOCH))
    run(["mkfs.fat", "--invariant", "-F", "12", "-h", str(ESP_OFFSET // SECTOR), "-C", esp, str(ESP_LENGTH // 1024)],
        env=_environment())
    environment = dict(_environment(), TZ="UTC", MTOOLS_SKIP_CHECK="1")
    run(["mmd", "-i", esp, "::/EFI", "::/EFI/BOOT"], env=environment)
    run(["mcopy", "-m", "-i", esp, image, "::/EFI/BOOT/BOOTX64.EFI"], env=environment)
    with open(raw, "r+b") as f:
        f.seek(ESP_OFFSET)
        f.write(read_bytes(esp))
