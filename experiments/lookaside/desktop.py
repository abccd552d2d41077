"""Operations of a desktop (Figures 8 and 12 of IRP-TR-03-10): what each of them waits for a distant disk.

A Debian guest with office programs (lab/labkit/office.py) does what theirs did. The requests of each operation are
recorded from the guest, on a disk of this machine, and replayed over each link. What a slowdown is
relative to, as in the seed's (time over the link - time here) / time here, is the time that the operation takes on
this machine, in a chroot of the same disk: in the guest, whose processor is emulated, it takes ten times as long.
"""

import os
import re
import subprocess
import tempfile
import time

from labkit import LabError
from labkit.golden import build, packages
from labkit.guest import Guest
from labkit.office import CUSTOM, DESKTOP, LAUNCH, OPERATIONS, VIRTUAL_SCREEN
from labkit.shell import wait_until
from place import HELD, LINKS, Place

SPEED = {"100m": 1, "10m": 1, "1m": 10, "100k": 100}
"""The links, and how many times as fast as in truth each runs here."""
REQUEST = re.compile(r" (Read|Write) id=\d+ offset=0x([0-9a-f]+) count=0x([0-9a-f]+) ")
CHROOT = """set -e
mount -o "loop,offset=$2" "$1" "$3"
mount -t proc proc "$3/proc"
for part in dev tmp run; do mount -t tmpfs tmpfs "$3/$part"; done
mkdir -m 1777 "$3/dev/shm" "$3/tmp/.X11-unix"
for name in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$3/dev/${name%:*}" c 1 "${name#*:}"; done
ln -s /proc/self/fd "$3/dev/fd"
exec chroot "$3" env -i HOME=/root LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh
"""
"""Runs its standard input in the system of a disk: its file, where the file system begins, and where to mount it."""


class Desktop:
    """A customised desktop's disk, and the requests of each operation on it."""

    def __init__(self, work, say):
        self.fresh = build.golden(say, DESKTOP)
        self.raw = os.path.join(work, "desktop.raw")
        self.work, self.say = work, say
        subprocess.run(["cp", "--sparse=always", os.path.join(self.fresh, "golden.raw"), self.raw], check=True)
        self._customise()
        self.operations = self._record()
        for operation, seconds in zip(self.operations, self._without_a_guest(), strict=True):
            operation["seconds"] = seconds

    def _guest(self, uri):
        return Guest(self.fresh, uri, profile="full", memory=1024)

    def _customise(self):
        self.say("a user makes the desktop his own")
        with RecordedDisk(self.raw, self.work) as (uri, _), self._guest(uri) as system:
            system.start().ready(timeout=600)
            system.execute(VIRTUAL_SCREEN, timeout=300)
            for command in CUSTOM:
                system.execute(LAUNCH + command, timeout=900)
            system.execute("sync")
            system.poweroff()

    def _record(self):
        """Of each operation: its name, the seconds that it took here, and the file with its requests."""
        self.say(f"recording {2 * len(OPERATIONS)} operations")
        recorded = []
        with RecordedDisk(self.raw, self.work, "--filter=cow") as (uri, log), self._guest(uri) as system:
            system.start().ready(timeout=600)
            system.execute(VIRTUAL_SCREEN, timeout=300)
            for turn in ("", " again"):
                for name, command in OPERATIONS:
                    begin = os.path.getsize(log)
                    done = system.execute(LAUNCH + command, timeout=900)
                    time.sleep(1)  # what was written is on its way
                    recorded.append(self._trace(name + turn, done["seconds"], log, begin))
        return recorded

    def _trace(self, name, seconds, log, begin):
        with open(log, encoding="utf-8") as f:
            f.seek(begin)
            asked = [(found[1][0], int(found[2], 16), int(found[3], 16)) for found in map(REQUEST.search, f) if found]
        reads = [(offset, length) for kind, offset, length in asked if kind == "R"]
        path = os.path.join(self.work, f"operation{name.replace(' ', '-')}.csv") if reads else None
        if path:
            with open(path, "w", encoding="utf-8") as f:
                f.write("time_us,op,offset,length\n")
                f.writelines(f"{at},R,{offset},{length}\n" for at, (offset, length) in enumerate(reads))
        return {"name": name, "guest_seconds": seconds, "reads": len(reads),
                "bytes": sum(length for _, length in reads), "trace": path}


    def _without_a_guest(self):
        """The seconds that each operation takes on this machine's own processor, in the order of the recording."""
        self.say("timing them on this machine")
        copy, mount = os.path.join(self.work, "chroot.raw"), os.path.join(self.work, "chroot")
        subprocess.run(["cp", "--sparse=always", self.raw, copy], check=True)
        os.mkdir(mount)
        timed = "".join(f"b=$(date +%s%N); ( {LAUNCH}{command} ) >/dev/null 2>&1 </dev/null\n"
                        "echo $(($(date +%s%N) - b))\n" for _, command in 2 * OPERATIONS)
        # The mounts are its own, and end with it.
        line = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CHROOT, "sh", copy,
                str(packages.ROOT_OFFSET), mount]
        done = subprocess.run(line, input=f"{VIRTUAL_SCREEN}\n{timed}", capture_output=True, text=True, check=False)
        os.remove(copy)
        if done.returncode:
            raise LabError(f"the desktop's disk cannot be used on this machine (root alone can): {done.stderr[-500:]}")
        return [int(line) / 1e9 for line in done.stdout.split()]


class RecordedDisk:
    """nbdkit with a disk, and the log of what is asked of it.  Use it as a context manager."""

    def __init__(self, raw, work, *filters):
        self.folder = tempfile.mkdtemp(prefix="nbd.", dir=work)
        self.socket, self.log = os.path.join(self.folder, "sock"), os.path.join(self.folder, "log")
        self.line = ["nbdkit", "--foreground", "--exit-with-parent", "-U", self.socket, "-e", "disk", "--filter=log",
                     *filters, "file", raw, f"logfile={self.log}"]
        self.server = None

    def __enter__(self):
        self.server = subprocess.Popen(self.line, stdin=subprocess.DEVNULL)
        wait_until("nbdkit", lambda: os.path.exists(self.socket), 20)
        return f"nbd+unix:///disk?socket={self.socket}", self.log

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()


class DesktopBench(Place):
    """A server with the fresh desktop and the user's, and a medium of the fresh one."""

    def __init__(self, binary, work):
        super().__init__(binary, work)
        self.desktop, self.media = None, {}

    def prepare(self, say):
        """Makes the disk and the medium, and starts the server."""
        self.desktop = Desktop(self.work, say)
        command = self.server.command
        command("init")
        command("image", "import", os.path.join(self.desktop.fresh, "golden.raw"), "fresh")
        command("image", "import", self.desktop.raw, "desktop")
        for held, image in (("fresh", "fresh"), ("100", "desktop")):
            self.media[held] = os.path.join(self.work, f"desktop-{held}")
            os.mkdir(self.media[held])
            command("media", "write", self.media[held], image)
        self.open()

    def use(self, link, held):
        """All operations on an attached disk, one after the other; what each waited for the disk."""
        rate, round_trip, _ = LINKS[link]
        speed = 1 if HELD.get(held) == 1 else SPEED[link]
        waits = []

        def operations(uri):
            waits.extend(self.replay(operation["trace"], uri, "--reads-only") if operation["trace"] else 0.0
                         for operation in self.desktop.operations)
            return sum(waits)

        cell = self.attached("desktop", (rate, round_trip, speed), self.media.get(held), operations)
        return {"waits": [round(wait * speed, 4) for wait in waits], **cell}

    def facts(self):
        """What the operations are, and how long each took here."""
        keys = ("name", "seconds", "guest_seconds", "reads", "bytes")
        return [{key: operation[key] for key in keys} for operation in self.desktop.operations]
