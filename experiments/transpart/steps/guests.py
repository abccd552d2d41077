"""The same work in four real guests: on a USB key, on a borrowed disk in the guest's own kernel, on one
that the host serves, on a disk of its own."""

import os
import shutil
import subprocess
import tarfile
import tempfile

from labkit import WORK, LabError
from labkit.golden import build
from labkit.golden.packages import BASE, Recipe
from labkit.guest import Guest
from labkit.shell import run

from .common import USB, Borrow, nbdkit, owner, rows

IMAGE = Recipe("transpart", (*BASE, "postmark", "fio", "tcc", "libc6-dev", "make"))
DISK = 3 << 30
LENT = "1G"
SOURCES, LINES = 250, 60
PACKAGES = 12
UP, DOWN = "borrow up, file system made and mounted", "borrow down"
DISKS = {"key": "USB key", "kernel": "borrowed, guest's kernel", "served": "borrowed, host serves", "own": "own disk"}
POSTMARK = (r"printf 'set location /mnt/x/mail\nset number 3000\nset transactions 6000\nset size 500 20000\n"
            r"set seed 1\nrun\nquit\n'")
FIO = ("fio --name=x --directory=/mnt/x --size=48M --direct=1 --time_based --runtime=5 --minimal --rw={} --bs={} "
       "--ioengine=psync | cut -d';' -f{}")
WORK_LIST = (
    ("postmark, 3,000 files, 6,000 transactions", "s", f"mkdir /mnt/x/mail && {POSTMARK} | postmark && sync"),
    (f"untar {SOURCES} sources and compile them", "s",
     "tar xf /dev/vdd -C /mnt/x && make -s -C /mnt/x/source && sync"),
    (f"install {PACKAGES} packages (dpkg)", "s",
     "mkdir -p /mnt/x/root/var/lib/dpkg/info /mnt/x/root/var/lib/dpkg/updates && "
     "touch /mnt/x/root/var/lib/dpkg/status /mnt/x/root/var/lib/dpkg/available && "
     "dpkg --root=/mnt/x/root --force-all --unpack /mnt/x/debs/*.deb && sync"),
    ("read in order, 128 KiB", "KB/s", FIO.format("read", "128k", 7)),
    ("write in order, 128 KiB", "KB/s", FIO.format("write", "128k", 48)),
    ("read at random, 4 KiB", "/s", FIO.format("randread", "4k", 8)),
    ("write at random, 4 KiB", "/s", FIO.format("randwrite", "4k", 49)),
)


def measure(sojourn, place, say):
    """Seconds or rates of all work in all guests."""
    golden = build.golden(say, IMAGE)
    material = tar(os.path.join(place, "material"))
    program = os.path.join(place, "program")
    shutil.copy(sojourn, program)
    run(["strip", program])
    os.truncate(program, -(-os.path.getsize(program) // 4096) * 4096)
    with tempfile.TemporaryDirectory(prefix="transpart.") as sockets:
        plain, lender = os.path.join(place, "plain"), owner(os.path.join(place, "lender"), DISK, 3)
        results = {}
        for name in DISKS:
            say(f"a guest on {name}")
            with open(plain, "wb") as f:
                f.truncate(1 << 30)
            if name == "key":
                with nbdkit(plain, os.path.join(sockets, "key.sock"), *USB) as uri:
                    results[name] = guest(golden, uri, program, material, place)
            elif name == "kernel":
                results[name] = guest(golden, lender, program, material, place, borrowed=True)
            elif name == "served":
                borrow = Borrow(sojourn, os.path.join(place, "home"))
                with borrow.up(lender, "--size", LENT) as (_, view):
                    results[name] = guest(golden, view["address"], program, material, place)
                    borrow.ask("down")
            else:
                results[name] = guest(golden, plain, program, material, place)
    for path in (plain, lender, material, program):
        os.unlink(path)
    return results


def guest(golden, disk, program, material, place, borrowed=False):
    """One guest's figures; its disk is empty and has a fresh ext4."""
    overlay = os.path.join(place, "root.qcow2")
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", os.path.join(golden, "golden.raw"), overlay])
    borrow = "/run/sojourn --home /run/home borrow"
    figures = {}
    with Guest(golden, overlay, memory=448, more=[disk, program, material]) as machine:
        machine.start().ready()
        machine.execute("dd if=/dev/vdc of=/run/sojourn bs=1M && chmod +x /run/sojourn && mkdir -p /mnt/x")
        if borrowed:
            machine.execute("modprobe dm-crypt")
            options = f"--size {LENT} --min-extent 256K --as dm --mkfs ext4 --mount /mnt/x"
            figures[UP] = machine.execute(f"{borrow} up /dev/vdb {options}")["seconds"]
        else:
            machine.execute("mkfs.ext4 -q -F -m 0 -E nodiscard /dev/vdb && mount /dev/vdb /mnt/x")
        for name, unit, command in WORK_LIST:
            machine.execute("sync; echo 3 > /proc/sys/vm/drop_caches")
            done = machine.execute(command, timeout=240)
            figures[name] = done["seconds"] if unit == "s" else float(done["note"])
        if borrowed:
            figures[DOWN] = machine.execute(f"{borrow} down")["seconds"]
            machine.execute("e2fsck -fn /dev/vdb")
        machine.poweroff()
        figures["accelerator"] = machine.accel
    os.unlink(overlay)
    return figures


def tar(path):
    """Sources to compile and packages to install, in one archive."""
    with tempfile.TemporaryDirectory(prefix="transpart.") as top:
        source, debs = (os.path.join(top, name) for name in ("source", "debs"))
        os.makedirs(source)
        os.makedirs(debs)
        for i in range(SOURCES):
            with open(os.path.join(source, f"f{i}.c"), "w", encoding="ascii") as f:
                f.write(f"#include <stdio.h>\n#include <string.h>\nint f{i}_0(int x) {{ return x; }}\n")
                f.writelines(f"int f{i}_{n}(int x) {{ return x * {n} + {i} + (x > {n} ? f{i}_{n - 1}(x - 1) : 0); }}\n"
                             for n in range(1, LINES))
        with open(os.path.join(source, "Makefile"), "w", encoding="ascii") as f:
            f.write("all: $(patsubst %.c,%.o,$(wildcard *.c))\n%.o: %.c\n\ttcc -c -o $@ $<\n")
        for deb in packages():
            shutil.copy(deb, debs)
        with tarfile.open(path, "w") as archive:
            for name in ("source", "debs"):
                archive.add(os.path.join(top, name), name)
    os.truncate(path, -(-os.path.getsize(path) // 4096) * 4096)
    return path


def packages():
    """Debian packages that unpack without running a program of their own."""
    folder, chosen = os.path.join(WORK, "debs"), []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith(".deb") and 50_000 < os.path.getsize(path) < 1_000_000:
            control = subprocess.run(["dpkg-deb", "--info", path], capture_output=True, text=True, check=True).stdout
            if "preinst" not in control:
                chosen.append(path)
        if len(chosen) == PACKAGES:
            return chosen
    raise LabError(f"too few packages in {folder}")


def table(result):
    """For the page."""
    body = []
    for name, unit, _ in WORK_LIST:
        figures = {disk: result[disk][name] for disk in DISKS}
        gain = {disk: figures["key"] / figures[disk] if unit == "s" else figures[disk] / figures["key"] for disk in DISKS}
        def show(figure, unit=unit):
            return f"{figure:.1f} s" if unit == "s" else f"{figure:,.0f} {unit}"
        body.append([name, *(show(figures[disk]) for disk in DISKS), f"{gain['kernel']:.1f}", f"{gain['served']:.1f}"])
    head = ["work", *DISKS.values(), "kernel : key", "served : key"]
    begin, end = (result["kernel"][name] for name in (UP, DOWN))
    return rows(head, body) + f"\nIn the guest, `borrow up` with a file system, mounted: {begin:.1f} s; `borrow down`: {end:.1f} s.\n"
