"""The disk of a PC that is started from somebody's key: an ext4, an NTFS, a FAT32 and swap space, each partly full.

What is free on it is found by other people's tools, or here by the format's own rules, and not by Sojourn; all is
made and checked outside of any guest, and nothing is mounted.
"""

import hashlib
import os
import random
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass, field

from . import LabError
from .owner import ENVIRONMENT, debugfs, run_any
from .shell import run

MIB = 1 << 20
PARTS = (("ext4", 1 * MIB, 1024 * MIB, "0FC63DAF-8483-4772-8E79-3D69D8477DE4"),
         ("ntfs", 1025 * MIB, 512 * MIB, "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"),
         ("fat", 1537 * MIB, 256 * MIB, "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"),
         ("swap", 1793 * MIB, 64 * MIB, "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F"))
"""Name, start, length and type of each partition."""

SIZE = 1858 * MIB
PAGE = 4096
SUSPENDED = b"S1SUSPEND\0"
"""What Linux writes over the end of the first page of swap space that it was suspended to."""


@dataclass
class Pc:
    """A PC's disk, and what must be so afterwards."""

    path: str
    sums: dict = field(default_factory=dict)
    """Of each partition, the hashes of its files."""
    free: list = field(default_factory=list)
    """Start and length in bytes of all that is free."""


def make(path, seed=3):
    """The disk of a PC that was shut down."""
    generator = random.Random(seed)
    with open(path, "wb") as f:
        f.truncate(SIZE)
    table = "label: gpt\nfirst-lba: 34\n" + "".join(
        f"{path}{n} : start={start // 512}, size={length // 512}, type={kind}\n"
        for n, (_, start, length, kind) in enumerate(PARTS, 1))
    run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", path], input=table, env=ENVIRONMENT)
    pc = Pc(path)
    for name, start, length, _ in PARTS:
        image, files = f"{path}.{name}", f"{path}.files"
        with open(image, "wb") as f:
            f.truncate(length)
        os.makedirs(files)
        pc.sums[name] = MAKERS[name](image, files, generator)
        shutil.rmtree(files)
        put(pc, name, image)
        pc.free += [(start + at, size) for at, size in FREE[name](image)]
        os.unlink(image)
    return pc


def take(pc, name):
    """A partition's content as a file of its own."""
    start, length = place(name)
    image = f"{pc.path}.{name}"
    run(["dd", f"if={pc.path}", f"of={image}", "bs=1M", f"skip={start // MIB}", f"count={length // MIB}", "conv=sparse",
         "status=none"])
    os.truncate(image, length)
    return image


def put(pc, name, image):
    """Writes a partition's content back."""
    run(["dd", f"if={image}", f"of={pc.path}", "bs=1M", f"seek={place(name)[0] // MIB}", "conv=sparse,notrunc",
         "status=none"])


def place(name):
    """Start and length of a partition in bytes."""
    return next((start, length) for part, start, length, _ in PARTS if part == name)


def write_at(pc, name, at, data):
    """Writes bytes into a partition."""
    with open(pc.path, "r+b") as f:
        f.seek(place(name)[0] + at)
        f.write(data)


def read_at(pc, name, at, length):
    """Bytes of a partition."""
    with open(pc.path, "rb") as f:
        f.seek(place(name)[0] + at)
        return f.read(length)


def _files(folder, generator, total):
    """Files of so many bytes in all, with their hashes."""
    sums = {}
    while total > 0:
        size = min(int(generator.lognormvariate(13, 1.8)) + 1, 24 * MIB, total)
        data = (generator.randbytes(min(size, 65536)) * (size // 65536 + 1))[:size]
        name = f"f{len(sums)}"
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
        sums[name] = hashlib.sha256(data).hexdigest()
        total -= size
    return sums


def _thin(sums, generator):
    """Every third file or so, taken out of the list."""
    return [(name, sums.pop(name))[0] for name in generator.sample(sorted(sums), len(sums) // 3)]


def _ext4(image, files, generator):
    sums = _files(files, generator, 420 * MIB)
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", files, image],
        env=ENVIRONMENT)
    debugfs(image, "\n".join(f"rm {name}" for name in _thin(sums, generator)), write=True)
    if run_any(["e2fsck", "-fy", image]) not in (0, 1):
        raise LabError("e2fsck could not prepare the PC's disk")
    return sums


def _ntfs(image, files, generator):
    sums = _files(files, generator, 120 * MIB)
    run(["mkntfs", "-F", "-q", "-f", image], env=ENVIRONMENT)
    for name in sums:
        run(["ntfscp", "-f", "-q", image, os.path.join(files, name), name], env=ENVIRONMENT)
    return sums


def _fat(image, files, generator):
    sums = _files(files, generator, 60 * MIB)
    run(["mkfs.fat", "-F", "32", image], env=ENVIRONMENT)
    run(["mcopy", "-i", image, *(os.path.join(files, name) for name in sums), "::/"], env=ENVIRONMENT)
    run(["mdel", "-i", image, *(f"::/{name}" for name in _thin(sums, generator))], env=ENVIRONMENT)
    return sums


def _swap(image, _files, _generator):
    run(["mkswap", image], env=ENVIRONMENT)
    return {}


MAKERS = {"ext4": _ext4, "ntfs": _ntfs, "fat": _fat, "swap": _swap}


def _ext4_free(image):
    """By dumpe2fs."""
    text = run(["dumpe2fs", image], env=ENVIRONMENT)
    block = int(re.search(r"^Block size:\s+(\d+)", text, re.M).group(1))
    for line in re.findall(r"^  Free blocks: (.+)$", text, re.M):
        for part in line.split(", "):
            low, _, high = part.partition("-")
            yield int(low) * block, (int(high or low) - int(low) + 1) * block


def _ntfs_free(image):
    """By ntfscat, which reads the map of clusters."""
    with open(image, "rb") as f:
        head = f.read(512)
    sector, = struct.unpack_from("<H", head, 11)
    cluster = sector * head[13]
    sectors, = struct.unpack_from("<Q", head, 40)
    bitmap = subprocess.run(["ntfscat", "-f", image, "$Bitmap"], stdout=subprocess.PIPE, check=True).stdout
    clusters = sectors * sector // cluster
    return _runs((n * cluster, cluster) for n in range(clusters) if not bitmap[n // 8] >> n % 8 & 1)


def _fat_free(image):
    """Clusters whose entry in the first table is 0."""
    with open(image, "rb") as f:
        head = f.read(512)
        sector, per, reserved, tables = struct.unpack_from("<HBHB", head, 11)
        total, length = struct.unpack_from("<II", head, 32)
        f.seek(reserved * sector)
        table = f.read(length * sector)
    data, cluster = (reserved + tables * length) * sector, per * sector
    clusters = (total * sector - data) // cluster
    entries = struct.unpack_from(f"<{clusters + 2}I", table)
    return _runs((data + (n - 2) * cluster, cluster) for n in range(2, clusters + 2) if not entries[n] & 0x0FFFFFFF)


def _swap_free(image):
    """All but the first page, which says what this is."""
    return [(PAGE, os.path.getsize(image) - PAGE)]


FREE = {"ext4": _ext4_free, "ntfs": _ntfs_free, "fat": _fat_free, "swap": _swap_free}


def _runs(pieces):
    """Neighbours put together."""
    runs = []
    for start, length in pieces:
        if runs and sum(runs[-1]) == start:
            runs[-1] = (runs[-1][0], runs[-1][1] + length)
        else:
            runs.append((start, length))
    return runs


def make_dirty(pc):
    """As if the power of the PC had gone while all of its file systems were mounted."""
    image = take(pc, "ext4")
    debugfs(image, "ssv state 0", write=True)
    put(pc, "ext4", image)
    os.unlink(image)
    write_at(pc, "fat", 65, b"\1")
    head = read_at(pc, "ntfs", 0, 512)
    sector, = struct.unpack_from("<H", head, 11)
    size = 1 << -struct.unpack_from("<b", head, 64)[0]
    # The record of the volume in the file table, and in its copy.
    for table in struct.unpack_from("<QQ", head, 48):
        at = table * sector * head[13] + 3 * size
        record = read_at(pc, "ntfs", at, size)
        flags = _attribute(record, 0x70) + 10
        write_at(pc, "ntfs", at + flags, bytes([record[flags] | 1]))


def _attribute(record, wanted):
    """Where the value of a resident attribute begins in a file record."""
    at, = struct.unpack_from("<H", record, 20)
    while True:
        kind, length = struct.unpack_from("<II", record, at)
        if kind == wanted:
            return at + struct.unpack_from("<H", record, at + 20)[0]
        if kind == 0xFFFFFFFF:
            raise LabError(f"no attribute {wanted:#x} in the file record")
        at += length


def make_suspended(pc):
    """As if Linux had been suspended to the swap space."""
    write_at(pc, "swap", PAGE - 10, SUSPENDED)


def make_full(path):
    """A disk with one ext4 that has less free space in one place than is ever borrowed."""
    with open(path, "wb") as f:
        f.truncate(96 * MIB)
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-b", str(PAGE), "-E", "lazy_itable_init=0,lazy_journal_init=0", path],
        env=ENVIRONMENT)
    free = sum(length for _, length in _ext4_free(path)) // PAGE
    debugfs(path, f"write /dev/null all\nfallocate all 0 {free - 40}", write=True)
    if run_any(["e2fsck", "-fy", path]) not in (0, 1):
        raise LabError("e2fsck could not prepare the full disk")


def digest(path):
    """The hash of a whole file."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def check(pc):
    """Fails unless each file system is clean and each file holds what it did."""
    checks = {"ext4": ["e2fsck", "-fn"], "ntfs": ["ntfsfix", "--no-action"], "fat": ["fsck.fat", "-n"]}
    for name, command in checks.items():
        image = take(pc, name)
        run([*command, image], env=ENVIRONMENT)
        out = image + ".out"
        os.makedirs(out)
        if name == "ext4":
            debugfs(image, "\n".join(f"dump {file} {out}/{file}" for file in pc.sums[name]))
        elif name == "fat":
            run(["mcopy", "-i", image, *(f"::/{file}" for file in pc.sums[name]), out], env=ENVIRONMENT)
        for file, expected in pc.sums[name].items():
            if name == "ntfs":
                with open(os.path.join(out, file), "wb") as f:
                    subprocess.run(["ntfscat", "-f", image, file], stdout=f, check=True)
            if digest(os.path.join(out, file)) != expected:
                raise LabError(f"{file} on the PC's {name} is damaged")
            os.unlink(os.path.join(out, file))
        os.rmdir(out)
        os.unlink(image)
