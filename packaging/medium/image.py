"""The image of a medium: GPT, GRUB for BIOS and for UEFI, the root as a squashfs; all by writing to files.

1  GRUB for a BIOS        2  FAT: GRUB for UEFI, its menu, kernel, initial RAM disk
3  the root, read-only    4  what is kept (ext4), if that was asked for
"""

import hashlib
import os
import shutil
import struct
import uuid

from labkit import WORK, LabError
from labkit.golden.disk import BIOS_LENGTH, BIOS_OFFSET, GRUB, MIB, SECTOR
from labkit.golden.packages import EPOCH
from labkit.shell import read_bytes, read_text, run, write_file

HERE = os.path.dirname(os.path.realpath(__file__))
BOOT_OFFSET = 2 * MIB
BOOT_SPARE = 8 * MIB
"""Bytes of the FAT beside the files on it, for its tables and for changes to the menu."""

MODULES = ["biosdisk", "part_gpt", "fat", "normal", "linux", "echo", "serial", "terminal", "search",
           "search_fs_file", "configfile", "boot", "test", "sleep", "gzio", "minicmd"]
MENU = "EFI/debian"
"""Where Debian's signed GRUB looks for its menu; the one for a BIOS is told to."""

SIGNED = {"usr/lib/shim/shimx64.efi.signed": "EFI/BOOT/BOOTX64.EFI",
          "usr/lib/shim/mmx64.efi.signed": "EFI/BOOT/mmx64.efi",
          "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed": "EFI/BOOT/grubx64.efi"}
"""What UEFI starts: signed, as most PCs start nothing else. `scripts/setup medium` unpacks it."""

KINDS = {"bios": "21686148-6449-6E6F-744E-656564454649", "boot": "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
         "files": "0FC63DAF-8483-4772-8E79-3D69D8477DE4"}

ENVIRONMENT = dict(os.environ, PATH="/usr/sbin:/sbin:" + os.environ["PATH"], SOURCE_DATE_EPOCH=str(EPOCH), TZ="UTC",
                   E2FSPROGS_FAKE_TIME=str(EPOCH), MTOOLS_SKIP_CHECK="1")


def write(path, files, root, keep, work):
    """Writes the image of the system at `root`, with `files` on the partition that it boots from and `keep` bytes to
    keep; returns its size in bytes."""
    squashed = os.path.join(work, "root.squashfs")
    run(["mksquashfs", root, squashed, "-quiet", "-no-progress", "-comp", "zstd", "-Xcompression-level", "9"],
        env=ENVIRONMENT)
    name = hashlib.sha256(read_bytes(squashed)).hexdigest()
    identities = {part: str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {part}"))
                  for part in ("disk", "bios", "boot", "root", "keep")}
    boot = _boot(work, files, identities, bool(keep))
    sizes = [BIOS_LENGTH, os.path.getsize(boot), _round(os.path.getsize(squashed)), keep]
    starts = [BIOS_OFFSET, BOOT_OFFSET, BOOT_OFFSET + sizes[1], BOOT_OFFSET + sizes[1] + sizes[2]]
    part = path + ".part"
    with open(part, "wb") as f:
        f.truncate(starts[3] + keep + MIB)
    _partition(part, starts, sizes, identities)
    _bios(part, work)
    for file, start in ((boot, starts[1]), (squashed, starts[2])):
        with open(file, "rb") as source, open(part, "r+b") as target:
            target.seek(start)
            shutil.copyfileobj(source, target, 1 << 20)
    if keep:
        # A borrowed disk has sectors of 4 KiB; Linux mounts no file system with smaller blocks there.
        run(["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-L", "keep", "-U", identities["keep"],
             "-m", "0", "-E", f"offset={starts[3]},lazy_itable_init=0,lazy_journal_init=0,"
             f"hash_seed={identities['keep']}", part, f"{keep // 1024}k"], env=ENVIRONMENT)
    os.rename(part, path)
    return os.path.getsize(path)


def _round(size):
    return -(-size // MIB) * MIB


def _partition(path, starts, sizes, identities):
    rows = zip(("bios", "boot", "root", "keep"), ("bios", "boot", "files", "files"), starts, sizes, strict=True)
    table = f"label: gpt\nlabel-id: {identities['disk']}\nfirst-lba: 34\n"
    for number, (name, kind, start, size) in enumerate(rows, 1):
        if size:
            table += (f"{path}{number} : start={start // SECTOR}, size={size // SECTOR}, type={KINDS[kind]}, "
                      f"uuid={identities[name]}, name=sojourn-{name}\n")
    run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", path], input=table, env=ENVIRONMENT)


def _mark(identities):
    """A file that only this medium has: GRUB finds its own partition by it."""
    return f"sojourn/{identities['root']}"


def _boot(work, files, identities, keep):
    """The FAT that GRUB starts from; the file."""
    tree = os.path.join(work, "boot")
    parameters = f"boot=sojourn sojourn.key={identities['root']}"
    if keep:
        parameters += f" sojourn.keep={identities['keep']}"
    menu = read_text(os.path.join(HERE, "grub.cfg")).replace("@PARAMETERS@", parameters)
    write_file(os.path.join(tree, MENU, "grub.cfg"), menu)
    write_file(os.path.join(tree, _mark(identities)), "")
    for source, target in SIGNED.items():
        source = os.path.join(WORK, "boot", source)
        if not os.path.exists(source):
            raise LabError(f"{source} is not there; run scripts/setup medium")
        os.makedirs(os.path.dirname(os.path.join(tree, target)), exist_ok=True)
        shutil.copy(source, os.path.join(tree, target))
    for name, content in files.items():
        with open(os.path.join(tree, "sojourn", name), "wb") as f:
            f.write(content)
    early = os.path.join(work, "early.cfg")
    write_file(early, f"search --no-floppy --file --set=root /{_mark(identities)}\nset prefix=($root)/{MENU}\n")
    run(["grub-mkimage", "-O", "i386-pc", "-c", early, "-p", f"/{MENU}", "-o", os.path.join(work, "core.img"),
         *MODULES])
    paths = [os.path.join(place, name) for place, _, names in os.walk(tree) for name in names]
    for path in paths:
        os.utime(path, (EPOCH, EPOCH))
    image = os.path.join(work, "boot.img")
    size = _round(sum(os.path.getsize(path) for path in paths)) + BOOT_SPARE
    # A FAT32 has at least 65525 clusters.
    size = max(size, 64 * MIB)
    run(["mkfs.fat", "--invariant", "-F", "32", "-s", "1", "-n", "SOJOURN", "-h", str(BOOT_OFFSET // SECTOR), "-C",
         image, str(size // 1024)], env=ENVIRONMENT)
    run(["mcopy", "-s", "-m", "-i", image, *sorted(os.path.join(tree, name) for name in os.listdir(tree)), "::/"],
        env=ENVIRONMENT)
    return image


def _bios(path, work):
    """boot.img into the MBR, core.img into its partition, their block lists set by hand."""
    first = bytearray(read_bytes(GRUB + "/boot.img")[:440])
    second = bytearray(read_bytes(os.path.join(work, "core.img")))
    if len(second) > BIOS_LENGTH:
        raise LabError(f"GRUB's core image has {len(second)} bytes, its partition {BIOS_LENGTH}")
    struct.pack_into("<Q", first, 0x5C, BIOS_OFFSET // SECTOR)
    struct.pack_into("<Q", second, 0x1F4, BIOS_OFFSET // SECTOR + 1)
    with open(path, "r+b") as f:
        f.write(first)
        f.seek(BIOS_OFFSET)
        f.write(second)
