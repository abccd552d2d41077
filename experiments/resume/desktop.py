"""A desktop that was suspended, and what its user waits for after it goes on elsewhere.

These are Figures 8 and 12 of IRP-TR-03-10, of a resumed guest. A day: the desktop is suspended as parcel 1 in the
evening, and that is what the medium has. The next day it goes on, some programs are used, and it is suspended as parcel
2. Each cell goes on with a clone of parcel 2 at the other end of a link, with or without the medium, and does the same
operations, each of which is timed by this machine's clock. They are set beside the same operations of a clone that has
all of its parcel on this machine.
"""

import contextlib
import json
import os
import re
import socket
import time

from labkit import LabError, accel, office, screen
from labkit.golden import build
from labkit.guest import PROFILES
from labkit.shell import wait_until

MEMORY = 2048
IN_MEMORY = "launch the spreadsheet"
"""The program that was in use before the last suspension."""
TODAY = (IN_MEMORY, "launch the editor", "open a sheet")
"""What is done on the day between the two suspensions."""
OPERATIONS = (IN_MEMORY, "launch the editor", "launch the word processor", "launch the viewer",
              "launch the calculator", "recalculate a sheet", "convert a text", "show a page", "turn a picture",
              "what kinds of files", "search one's documents", "search the system's documents",
              "archive one's documents", "a program of one's own", "copy a folder", "list all files")
"""What is done after it goes on."""
COMMANDS = dict(office.OPERATIONS)
FILLED = "cat /usr/lib/x86_64-linux-gnu/*.so* >/dev/null 2>&1; true"
"""Has the page cache of the guest hold what an office's day leaves there."""
USED = "awk '/^MemTotal|^MemFree/ { print $2 }' /proc/meminfo | paste -sd' '"
MESSAGE = re.compile(r"LAB ({.*})")
HERE = "here"
"""The link of a cell that has no link."""
THINNEST = {False: 10e6, True: 1e6}
"""Bits per second of the thinnest link that a desktop goes on over, without a medium and with one: thinner ones take
hours, and programs give up."""


class Inside:
    """The laboratory's agent in a machine, at the socket of its second serial line."""

    def __init__(self, path):
        self.path, self.asked = path, 0

    def until_ready(self, seconds=900):
        """Waits until the agent answers."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.execute("true", 10)
            except (LabError, OSError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def execute(self, command, seconds=1800):
        """Runs a command; the seconds that it took, by this machine's clock, and the last line that it printed.

        An answer to an earlier command, which nobody waited for any more, must not pass for this one's: each has a
        number.
        """
        self.asked += 1
        mark = f"answer-{os.getpid()}-{self.asked}"
        line = f'exec out=$( {{ {command}; }} 2>&1 </dev/null ); echo "{mark} $? $(echo "$out" | tail -n 1)"\n'
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(1)
            channel.connect(self.path)
            began, text = time.monotonic(), ""
            channel.sendall(line.encode())
            while time.monotonic() < began + seconds:
                with contextlib.suppress(TimeoutError):
                    text += channel.recv(65536).decode("utf-8", "replace")
                for found in MESSAGE.finditer(text):
                    with contextlib.suppress(ValueError):
                        note = json.loads(found[1]).get("note", "")
                        if note.startswith(mark):
                            return time.monotonic() - began, note.removeprefix(mark).strip()
        raise LabError(f"the guest does not answer {command[:60]!r}")


class DesktopBench:
    """The suspended desktop, and its resumes.  `home` is that of a machine with the whole of it."""

    def __init__(self, home, work, say):
        self.home, self.work, self.say = home, work, say
        self.golden = build.golden(say, office.SCREEN)
        self.channel = os.path.join(work, "desk")
        self.inside, self.cells, self.facts = Inside(self.channel), 0, {"memory_mib": MEMORY}

    def prepare(self):
        """Two parcels of the desktop, a day apart."""
        home = self.home
        home.command("image", "import", os.path.join(self.golden, "golden.raw"), "office")
        home.command("disk", "create", "desk", "--from", "office")
        kernel = f"{build.manifest(self.golden)['cmdline']} {PROFILES['full']}".strip()
        home.command("vm", "create", "desk", "--disk", "desk", "--memory", f"{MEMORY}M", "--screen", "--qemu",
                     accel.qemu(), "--", "-kernel", os.path.join(self.golden, "vmlinuz"),
                     "-initrd", os.path.join(self.golden, "initrd-tiny.img"), "-append", kernel,
                     "-chardev", f"socket,id=lab,path={self.channel},server=on,wait=off", "-serial", "chardev:lab",
                     "-no-reboot")
        home.command("vm", "start", "desk")
        self.inside.until_ready()
        self.say("a user makes the desktop his own")
        for line in office.XORG_CONFIGURATION:
            self.inside.execute(line)
        shown = self.inside.execute(office.CARD_SCREEN)[1]
        if not re.fullmatch(r"0 \d+ \d+", shown):
            raise LabError(f"the desktop has no screen: {shown}")
        for command in office.CUSTOM:
            self._operate(command)
        self._operate(COMMANDS[IN_MEMORY])
        self.inside.execute(FILLED)
        self.facts["first"] = self._suspend()
        self.home.command("vm", "resume", "desk")
        for name in TODAY:
            self._operate(COMMANDS[name])
        running, _ = self.inside.execute(office.LAUNCH + COMMANDS[IN_MEMORY])
        self.facts["launch_before_suspension"] = running
        self._show_windows()
        self.facts["second"] = self._suspend()

    def _operate(self, command):
        """Does one thing; the seconds that it took."""
        seconds, said = self.inside.execute(office.LAUNCH + command)
        if not said.startswith("0"):
            raise LabError(f"{command!r} failed in the guest: {said}")
        return seconds

    def _show_windows(self):
        """Leaves programs open, as their user does."""
        for command in office.WINDOWS:
            self.inside.execute(f"export DISPLAY=:9; cd /root; {command}")

    def _suspend(self):
        """Suspends it; what that took and stored, once all has gone up."""
        total, free = map(int, self.inside.execute(USED)[1].split()[1:3])
        began = time.monotonic()
        self.home.command("vm", "suspend", "desk")
        returned = time.monotonic() - began
        stored = self.home.command("vm", "suspend", "--wait", "desk")
        facts = {"used_mib": (total - free) >> 10, "returned_seconds": returned, "memory_bytes": stored["memory_bytes"]}
        self.say(f"suspended: {json.dumps(facts)}")
        return facts

    def medium(self, parcel):
        """A key with a parcel."""
        path = os.path.join(self.work, f"desktop-key-{parcel.replace('@', '-')}")
        if not os.path.exists(path):
            os.mkdir(path)
            name = f"key{parcel[-1]}"
            self.home.command("vm", "clone", parcel, name)
            self.home.command("media", "write", path, name)
        return path

    def cell(self, there, link, held, shown=None):
        """Goes on in the home `there`, and does the operations; what they took.

        `shown` is where a picture of the screen goes.
        """
        self.cells += 1
        name = f"desk{self.cells}"
        self.home.command("vm", "clone", "desk@2", name)
        self.home.command("disk", "release", name)
        cell = {"link": link, "medium": held, "load": os.getloadavg()[0]}
        began = time.monotonic()
        words = ["resume", "--trust-arguments", "--qemu", accel.qemu(), name]
        there.command("vm", *words)
        cell["running_seconds"] = time.monotonic() - began
        self.inside.execute("true")
        cell["answer_seconds"] = time.monotonic() - began
        if shown:
            self.picture(there, name, shown)
        self.inside.execute(office.CLOSE)
        cell["operations"] = {operation: self._operate(COMMANDS[operation]) for operation in OPERATIONS}
        there.command("vm", "stop", "--force", name)
        return cell

    def picture(self, there, name, path):
        """Draws what the machine's screen shows."""
        socket_of_screen = there.command("vm", "show", name)["running"]["screen"]
        wait_until("the screen", lambda: os.path.exists(socket_of_screen), 10)
        with open(path, "wb") as f:
            f.write(screen.picture(socket_of_screen))
