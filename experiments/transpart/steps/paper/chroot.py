"""Work in a system that lies on a device: natively, with no more memory than a VM has."""

import contextlib
import glob
import os
import shutil
import subprocess
import time

from labkit import LabError
from labkit.shell import run

V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
PREFIX = "transpart-paper"
DIRTY = 0.2
"""The part of the memory that may wait to be written, as Linux has it (vm.dirty_ratio)."""
NODES = ("null:3", "zero:5", "full:7", "random:8", "urandom:9")
FIRST = ("chrt", "-r", "1")
"""Work runs ahead of what else this machine does, behind the servers of its device."""
ENTER = 'echo $$ > "$1/cgroup.procs" || exit 99; shift; exec "$@"'
ENVIRONMENT = (
    "HOME=/root",
    "LC_ALL=C.UTF-8",
    "DISPLAY=:9",
    "DEBIAN_FRONTEND=noninteractive",
    "NO_AT_BRIDGE=1",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
)


class Memory:
    """A memory cgroup: all that its processes use and cache is no more than a VM would have."""

    def __init__(self, mib):
        self.first = os.path.exists(f"{V1}/memory.limit_in_bytes")
        base = V1 if self.first else V2
        if not self.first and "memory" not in words(f"{V2}/cgroup.subtree_control"):
            with contextlib.suppress(OSError):
                write(f"{V2}/cgroup.subtree_control", "+memory")
        self.path = f"{base}/{PREFIX}-{os.getpid()}-{time.monotonic_ns()}"
        try:
            os.mkdir(self.path)
            self.limit(mib)
        except OSError as e:
            raise LabError(f"no memory cgroup can be made, of either version: {e}") from e

    def limit(self, mib):
        """Changes how many MiB there are."""
        write(f"{self.path}/{'memory.limit_in_bytes' if self.first else 'memory.max'}", str(mib << 20))

    def enter(self):
        """The words before a command that make it one of the cgroup's."""
        return ["sh", "-c", ENTER, "sh", self.path]

    def drop(self):
        """Forgets what the cgroup's processes have cached: that alone, of all that the machine has."""
        if self.first:
            write(f"{self.path}/memory.force_empty", "0")
            return
        for _ in range(8):
            try:
                write(f"{self.path}/memory.reclaim", "1G")
            except OSError:
                return

    def close(self):
        """Removes the cgroup when its last process is gone."""
        for _ in range(100):
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
                return
            time.sleep(0.1)


class System:
    """A mounted root with what a running system has on it, to run commands in.  Use it as a context manager."""

    def __init__(self, root, memory):
        self.root, self.mounts, self.screen = root, [], None
        for part in ("dev", "tmp", "run"):
            self._mount("-t", "tmpfs", "tmpfs", f"{root}/{part}")
        for node in NODES:
            name, _, minor = node.partition(":")
            os.mknod(f"{root}/dev/{name}", 0o020666, os.makedev(1, int(minor)))
            os.chmod(f"{root}/dev/{name}", 0o666)
        os.mkdir(f"{root}/dev/shm")
        os.symlink("/proc/self/fd", f"{root}/dev/fd")
        os.makedirs(f"{root}/tmp/.X11-unix")
        self.memory = Memory(memory)
        self.limit_dirty(memory)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end_screen()
        for path in reversed(self.mounts):
            subprocess.run(["umount", "-l", path], check=False)
        self.memory.close()

    def _mount(self, *words):
        run(["mount", *words])
        self.mounts.append(words[-1])

    def limit_dirty(self, memory):
        """No more of the device's data waits to be written than a system of so much memory lets wait."""
        device = os.stat(self.root).st_dev
        place = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}"
        with contextlib.suppress(OSError):
            write(f"{place}/strict_limit", "1")
            write(f"{place}/max_bytes", str(int(memory * DIRTY) << 20))

    def line(self, command):
        """The words that run a shell command in the system."""
        return [
            *self.memory.enter(),
            *FIRST,
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--net",
            f"--mount-proc={self.root}/proc",
            "chroot",
            self.root,
            "env",
            "-i",
            *ENVIRONMENT,
            "sh",
            "-c",
            command,
        ]

    def sh(self, command, timeout=3600):
        """What a command prints; LabError when it fails."""
        done = subprocess.run(
            self.line(f"cd /root; {command}"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if done.returncode:
            raise LabError(f"{command}: {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
        return done.stdout

    def timed(self, command):
        """Seconds of a command until what it wrote is on the disk, and what it printed."""
        began = time.monotonic()
        out = self.sh(command)
        self.flush()
        return time.monotonic() - began, out

    def flush(self):
        """Writes what waits to be written to the system's disk, and only that."""
        run(["sync", "-f", self.root])

    def drop(self):
        """Begins with nothing in memory."""
        self.flush()
        self.memory.drop()

    def put(self, files, folder):
        """Copies files of this machine into the system."""
        os.makedirs(self.root + folder)
        for path in files:
            shutil.copy(path, self.root + folder)

    def begin_screen(self):
        """An X server without a display."""
        self.screen = subprocess.Popen(
            self.line("exec Xvfb :9 -screen 0 1024x768x24 -nolisten tcp"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 60
        while not os.path.exists(f"{self.root}/tmp/.X11-unix/X9"):
            if time.monotonic() > end or self.screen.poll() is not None:
                raise LabError("Xvfb does not come up")
            time.sleep(0.05)

    def end_screen(self):
        """Ends the X server."""
        if self.screen:
            self.screen.kill()
            self.screen.wait()
            self.screen = None


def leftovers():
    """Removes cgroups of runs that were killed."""
    for path in glob.glob(f"{V1}/{PREFIX}-*") + glob.glob(f"{V2}/{PREFIX}-*"):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def words(path):
    """The words of a small file."""
    with open(path, encoding="ascii") as f:
        return f.read().split()


def write(path, text):
    """Writes a setting of the kernel's."""
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
