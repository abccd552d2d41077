"""The cached build of the golden image."""

import json
import os
import shutil
import tempfile
import time

from .. import WORK
from ..shell import locked, read_bytes, read_text, run
from . import disk, initrd, packages, system

NEEDED = 1 << 30
"""Bytes of memory file system that a build wants; with less it unpacks on disk."""


def golden(say=lambda text: None, recipe=packages.GOLDEN):
    """The directory of a recipe's image; built when it is not there yet.

    It holds golden.raw, vmlinuz, initrd-tiny.img and manifest.json.
    """
    home = os.path.join(WORK, recipe.name)
    out = os.path.join(home, packages.key(recipe))
    with locked(os.path.join(WORK, f"{recipe.name}.lock")):
        if not os.path.exists(os.path.join(out, "manifest.json")):
            say(f"building the {recipe.name} image ({packages.SUITE}, {len(recipe.packages)} packages and what they need)")
            # One image is kept: the one that belongs to this state of the tree.
            shutil.rmtree(home, ignore_errors=True)
            part = out + ".part"
            os.makedirs(part)
            _build(recipe, part)
            os.rename(part, out)
            say(f"{recipe.name} image built in {manifest(out)['total_seconds']} s")
    return out


def manifest(folder):
    """What is known of an image: kernel, size, seconds of each step."""
    return json.loads(read_text(os.path.join(folder, "manifest.json")))


def _build(recipe, out):
    memory = "/dev/shm"
    room = os.statvfs(memory) if os.path.isdir(memory) else None
    fits = room is not None and room.f_bavail * room.f_frsize > NEEDED
    work = tempfile.mkdtemp(prefix="golden.", dir=memory if fits else WORK)
    os.chmod(work, 0o755)
    root, raw, steps = os.path.join(work, "root"), os.path.join(out, "golden.raw"), {}
    began = time.monotonic()

    def step(name, result=None):
        steps[name] = round(time.monotonic() - began - sum(steps.values()), 1)
        return result

    try:
        step("packages", system.bootstrap(recipe, root, os.path.join(WORK, "debs")))
        with open(os.path.join(out, "initrd-tiny.img"), "wb") as f:
            f.write(initrd.tiny(root, os.listdir(root + "/lib/modules")[0]))
        kernel = step("settings", system.configure(root, recipe))
        step("disk", disk.assemble(root, work, raw, recipe.size))
        with open(os.path.join(out, "vmlinuz"), "wb") as f:
            f.write(read_bytes(f"{root}/boot/vmlinuz-{kernel}"))
        used = int(run(["du", "-sxk", root]).split()[0])
    finally:
        shutil.rmtree(work, ignore_errors=True)
    facts = {"suite": packages.SUITE, "kernel": kernel, "cmdline": packages.KERNEL_PARAMETERS,
             "root_offset": packages.ROOT_OFFSET, "virtual_bytes": recipe.size,
             "allocated_bytes": os.stat(raw).st_blocks * 512, "root_kib": used, "seconds": steps,
             "total_seconds": round(sum(steps.values()), 1)}
    with open(os.path.join(out, "manifest.json"), "w", encoding="utf-8") as f:
        json.dump(facts, f, indent=1)
