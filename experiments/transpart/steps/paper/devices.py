"""Block devices as slow as the paper's: a modelled disk served in real time, as a loop device of this machine.

The system's image is read through a layer that keeps what is written in memory, so each run begins with the same
bytes and the store below takes no time that a disk would be seen to take. `sojourn serve --throttle` gives it the
pace of a profile, nbdfuse makes a file of that export, and the loop device passes requests on as they come
(direct I/O): the kernel above sees a disk of its own, whose speed is the profile's alone.
"""

import contextlib
import mmap
import os
import shutil
import signal
import subprocess
import tempfile
import time

from labkit import WORK, LabError
from labkit.golden.packages import ROOT_OFFSET
from labkit.shell import run, wait_until

from .chroot import Memory, write

PROFILES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), "profiles")
DEVICES = {"SanDrive": "sandrive", "MSD": "msd", "IPOD": "ipod", "TransPart": "sata", "Host": "sata"}
"""The paper's cases, and the profile of the disk that does the work in each."""

LARGEST = {"SanDrive": 128, "MSD": 128}
"""KiB of the largest request: the profiles of flash are of such."""
ALONE = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /sys/block && exec "$@"', "sh")
"""Hides the machine's loop devices from `borrow up`, which asks all of them what they stand on. The one that stands on
its own export, and is busy, would answer only after it."""
SIZE = 4 << 30
BORROWED = "4G"
"""The VM's disk, and the borrowed one."""
SMALLEST = "4M"
"""No smaller extent is taken, as in the paper."""
CACHE = 96
"""MiB that what lends has, its page cache included."""
READ_AHEAD = 512
"""KiB that the kernel reads ahead: the way to the model is longer than to a disk."""
FIRST = ("chrt", "-f", "10")
"""Servers of a device run ahead of all else on this machine: a disk does not wait for a processor."""
PATIENCE = 30


class Stack:
    """Servers and mounts one upon the other, taken down from the top."""

    def __init__(self, sojourn, place):
        self.sojourn, self.undo, self.count, self.attached = sojourn, contextlib.ExitStack(), 0, set()
        self.place = tempfile.mkdtemp(dir=place)
        self.undo.callback(remove, self.place)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.undo.close()

    def path(self, name):
        """A fresh name below this stack's directory."""
        self.count += 1
        return os.path.join(self.place, f"{name}{self.count}")

    def start(self, line, ready, what, memory=None):
        """A server that ends with the stack, maybe with no more than some memory; `ready` says when it is there."""
        with open(self.path("log"), "wb") as log:
            process = subprocess.Popen(
                [*(memory.enter() if memory else ()), *FIRST, *line],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ, TMPDIR=os.path.join(WORK, "transpart-run")),
            )
        self.undo.callback(stop, process)

        def there():
            if process.poll() is not None:
                raise LabError(f"{what} ended with {process.returncode}: {read(log.name)}")
            return ready()

        wait_until(what, there, PATIENCE)
        return process

    def file(self, uri, size, connections=4):
        """A file that is what an NBD export is."""
        path = self.path("disk")
        with open(path, "wb"):
            pass
        line = ["nbdfuse", "-C", str(connections), path, uri]
        self.start(line, lambda: os.path.getsize(path) == size, "nbdfuse")
        return path

    def image(self, path, keep=False):
        """The NBD address of an image; what is written to it is forgotten with the stack, unless it is to be kept."""
        socket = self.path("s")
        how = ["-f", "qcow2"] if path.endswith(".qcow2") else ["-f", "raw"]
        if not keep:
            how.append("--snapshot")
        self.start(["qemu-nbd", "-t", "-e", "4", "-k", socket, *how, path], lambda: os.path.exists(socket), "qemu-nbd")
        return unix(socket)

    def paced(self, file, profile):
        """The NBD address of a file that is as slow as a disk."""
        socket = self.path("s")
        self.serve(file, socket, profile)
        return unix(socket)

    def split(self, uri):
        """The same export in requests of no more than 128 KiB, as a file system's go to a key."""
        socket = self.path("s")
        self.start(
            ["nbdkit", "-f", "-U", socket, "--filter=blocksize", "nbd", f"uri={uri}", "maxdata=128K"],
            lambda: os.path.exists(socket),
            "nbdkit",
        )
        return unix(socket)

    def serve(self, file, socket, profile):
        """`sojourn serve` of one file, at a disk's pace or at its own."""
        line = [self.sojourn, "serve", "--file", file, "--format", "raw", "--nbd", f"unix:{socket}"]
        if profile:
            line += ["--throttle", os.path.join(PROFILES, f"{profile}.toml")]
        return self.start(line, lambda: os.path.exists(socket), "sojourn serve")

    def loop(self, file, offset=0, largest=None):
        """A loop device on a file, without a cache of its own, maybe with requests of no more than some KiB."""
        device = run(["losetup", "--direct-io=on", "--show", "-f", "-o", str(offset), file]).strip()
        self.attached.add(device)
        self.undo.callback(self.detach, device)
        queue = f"/sys/block/{os.path.basename(device)}/queue"
        write(f"{queue}/read_ahead_kb", str(READ_AHEAD))
        if largest:
            write(f"{queue}/max_sectors_kb", str(largest))
        return device

    def mount(self, device):
        """The directory where a device's file system is mounted; the device goes with the mount."""
        path = self.path("mount")
        os.mkdir(path)
        run(["mount", "-o", "noatime", device, path])
        self.undo.callback(self.unmount, path, device)
        self.detach(device)
        return path

    def unmount(self, path, device):
        """Takes a file system away, and waits until its loop device is free; whoever has a file open keeps both."""
        quiet(["umount", path])
        if os.path.ismount(path):
            run(["umount", "--lazy", path])
        backing = f"/sys/block/{os.path.basename(device)}/loop/backing_file"
        end = time.monotonic() + PATIENCE
        while os.path.exists(backing) and self.place in read(backing) and time.monotonic() < end:
            time.sleep(0.1)

    def detach(self, device):
        """Lets a loop device go: at once, or with its mount. Its name is another case's from then on."""
        if device in self.attached:
            self.attached.remove(device)
            quiet(["losetup", "-d", device])

    def borrowed(self, owner, uri, encrypted=True):
        """The NBD address of a disk borrowed from an owner's, with an image on it.

        Only what comes after that goes at the disk's pace.
        """
        slow, again = self.path("s"), self.path("s")
        first = self.serve(owner, slow, None)
        # What stands between goes on when the server comes back with another pace.
        self.start(
            ["nbdkit", "-f", "-U", again, "--filter=retry", "nbd", f"socket={slow}", "retry-delay=1"],
            lambda: os.path.exists(again),
            "nbdkit",
        )
        file = self.file(unix(again), os.path.getsize(owner), connections=1)
        # What lends reads through a page cache, which is to be no larger than that of a small host.
        memory = Memory(4096)
        self.undo.callback(memory.close)
        lent = self.borrow(file, memory) if encrypted else self.plain(file, memory)
        run(["nbdcopy", "--flush", uri, lent])
        memory.limit(CACHE)
        stop(first)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(slow)
        self.serve(owner, slow, "sata")
        return lent

    def borrow(self, file, memory):
        """The NBD address of a disk that `borrow up` makes of an owner's."""
        home, socket = self.path("home"), self.path("s")
        run([self.sojourn, "--home", home, "init"])
        up = [self.sojourn, "--home", home, "borrow", "up", file, "--size", BORROWED, "--min-extent", SMALLEST]
        up += ["--nbd", f"unix:{socket}"]
        self.start([*ALONE, *up], lambda: os.path.exists(socket), "borrow up", memory)
        return unix(socket)

    def plain(self, file, memory):
        """The same way as a borrowed disk's, without borrowing and without a cipher."""
        socket = self.path("s")
        self.start(
            ["nbdkit", "-f", "-U", socket, "--filter=truncate", "file", file, f"truncate={BORROWED}"],
            lambda: os.path.exists(socket),
            "nbdkit",
            memory,
        )
        return unix(socket)


def device(stack, name, image, owner, encrypted=True):
    """The loop device of a case's disk with an image of a system on it, at the root's partition."""
    uri = stack.image(image)
    if name == "TransPart":
        uri = stack.borrowed(owner, uri, encrypted)
    else:
        uri = stack.paced(stack.file(uri, SIZE), DEVICES[name])
    file = stack.file(uri, SIZE)
    if name == "TransPart":
        touch(file)
    return stack.loop(file, ROOT_OFFSET, LARGEST.get(name))


def touch(file):
    """Reads one page, alone: what goes on after its server came back opens it again before there are more requests."""
    page, descriptor = mmap.mmap(-1, mmap.PAGESIZE), os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        os.preadv(descriptor, [page], 0)
    finally:
        os.close(descriptor)


def unix(socket):
    """The NBD address of a socket."""
    return f"nbd+unix:///?socket={socket}"


def stop(process):
    """Ends a server, and waits for that."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def quiet(command):
    """A command on the way out: it is tried some times, as what uses a device may need a moment to end."""
    for _ in range(20):
        if not subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
            return
        time.sleep(0.25)


def remove(place):
    """Removes a stack's directory, but nothing that is still mounted there."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        with contextlib.suppress(OSError):
            if name.startswith("home"):
                shutil.rmtree(path)
            elif os.path.isdir(path):
                os.rmdir(path)
            else:
                os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(place)


def read(path):
    """The end of a log."""
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()[-800:]
