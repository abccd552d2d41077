"""The disk of an owner that is borrowed from, and what must be so afterwards.

Everything is made and checked outside of the guest, by other people's tools and by hashes;
nothing here mounts anything.
"""

import hashlib
import os
import random
import subprocess

from . import LabError
from .shell import run

SIZE = 384 << 20
"""Bytes of the owner's disk."""

FILES = 400
"""Files that are written before some of them are deleted again."""

ENVIRONMENT = dict(os.environ, PATH="/usr/sbin:/sbin:" + os.environ["PATH"])


def make(path, seed=7):
    """An ext4 with free space in many places; returns its surviving files with their hashes."""
    generator = random.Random(seed)
    folder = path + ".files"
    os.makedirs(folder)
    names, sums = [], {}
    for i in range(FILES):
        name = f"f{i}"
        size = min(int(generator.lognormvariate(12.5, 1.6)), 8 << 20)
        data = generator.randbytes(min(size, 65536)) * (size // 65536 + 1)
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data[:size])
        names.append(name)
        sums[name] = hashlib.sha256(data[:size]).hexdigest()
    with open(path, "wb") as f:
        f.truncate(SIZE)
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", folder, path],
        env=ENVIRONMENT)
    gone = generator.sample(names, FILES // 2)
    debugfs(path, "\n".join(f"rm {name}" for name in gone), write=True)
    for name in names:
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    for name in gone:
        del sums[name]
    # Deleting with debugfs leaves the counts of free blocks to be put right.
    check = run_any(["e2fsck", "-fy", path])
    if check not in (0, 1):
        raise LabError(f"e2fsck -fy could not prepare {path} ({check})")
    return sums


def run_any(command):
    """A command's exit status, whatever it is."""
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT,
                          check=False).returncode


def debugfs(path, script, write=False):
    """Runs debugfs commands."""
    return run(["debugfs", *(["-w"] if write else []), "-f", "/dev/stdin", path], input=script + "\n", env=ENVIRONMENT)


def kept_hash(path, lent):
    """The hash of every byte that is not lent; `lent` holds pairs of start and length."""
    digest, at = hashlib.sha256(), 0
    with open(path, "rb") as f:
        for start, length in [*sorted(lent), (os.path.getsize(path), 0)]:
            f.seek(at)
            while at < start:
                piece = f.read(min(1 << 20, start - at))
                digest.update(piece)
                at += len(piece)
            at = start + length
    return digest.hexdigest()


def check(path, sums):
    """Fails unless the file system is clean and every file holds what it did."""
    run(["e2fsck", "-fn", path], env=ENVIRONMENT)
    target = path + ".out"
    os.makedirs(target)
    debugfs(path, "\n".join(f"dump {name} {target}/{name}" for name in sums))
    for name, expected in sums.items():
        with open(os.path.join(target, name), "rb") as f:
            if hashlib.sha256(f.read()).hexdigest() != expected:
                raise LabError(f"{name} of the owner is damaged")
        os.unlink(os.path.join(target, name))
    os.rmdir(target)
