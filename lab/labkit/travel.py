"""A machine hops between two homes on one store: what `sojourn vm` promises, with a real guest.

The guest counts: it writes each number to its disk, syncs, and then says it on the serial line.
What it said in one home, and then in the next, must be one row of numbers without a gap or a
repetition, whatever was killed in between; but for what was said after the parcel was made that
a machine went on from.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time

from . import LabError, accel
from .golden import build
from .guest import PROFILES
from .server import Server
from .shell import read_text, run, tail, wait_until

NAME = "work"
MEMORY = "256M"
KILLS = 2
COUNTER = ("n=0; while :; do n=$((n+1)); echo $n > /var/counter.new && mv /var/counter.new /var/counter && sync && "
           "echo TICK $n. > /dev/ttyS0; sleep 0.2; done")
PATTERN_SUM = "md5sum < /run/pattern | cut -c1-32"
TICK = re.compile(r"TICK (\d+)\.")


class Traveller:
    """The machine, wherever it runs."""

    def __init__(self, golden, first, second):
        self.golden, self.homes = golden, [first, second]
        self.at, self.offset, self.asked, self.pattern = 0, 0, 0, None
        self.channel_path = os.path.join(first.sockets, "lab")

    @property
    def home(self):
        """The home that it is in."""
        return self.homes[self.at]

    def qemu(self):
        """The QEMU of the present home: LAB_QEMU_ELSEWHERE has the second one use another."""
        return os.environ.get("LAB_QEMU_ELSEWHERE", accel.qemu()) if self.at else accel.qemu()

    def folder(self):
        """The directory of the machine."""
        return os.path.join(self.home.home, "machines", NAME)

    def vm(self, verb, *words):
        """A verb of `sojourn vm` in the present home."""
        try:
            return self.home.command("vm", verb, *words)
        except LabError as e:
            logs = [tail(os.path.join(self.folder(), log)) for log in ("keeper.log", "qemu.log", "console.log")]
            raise LabError("\n---\n".join([str(e), *logs])) from e

    def create(self):
        """Describes the machine: the laboratory's kernel, its agent on the second serial line."""
        manifest = build.manifest(self.golden)
        self.vm("create", NAME, "--disk", "box", "--memory", MEMORY, "--qemu", self.qemu(), "--",
                "-kernel", os.path.join(self.golden, "vmlinuz"),
                "-initrd", os.path.join(self.golden, "initrd-tiny.img"),
                "-append", f"{manifest['cmdline']} {PROFILES['bare']}",
                "-chardev", f"socket,id=lab,path={self.channel_path},server=on,wait=off", "-serial", "chardev:lab",
                "-no-reboot")

    def resume(self, name):
        """Goes on in the present home; the arguments for QEMU are new to it the first time."""
        words = ["--qemu", self.qemu(), name]
        if not os.path.exists(self.folder()):
            try:
                self.home.command("vm", "resume", *words)
                raise LabError("arguments for QEMU that came with a parcel were used unasked")
            except LabError as e:
                if "--trust-arguments" not in str(e):
                    raise
            words.insert(0, "--trust-arguments")
        return self.vm("resume", *words)

    def tell(self, line, fits, seconds=120):
        """Says a line to the agent; returns its first message that `fits`."""
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(1)
            channel.connect(self.channel_path)
            channel.sendall(line.encode() + b"\n")
            end, text = time.monotonic() + seconds, ""
            while time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    text += channel.recv(65536).decode("utf-8", "replace")
                for found in re.finditer(r"LAB ({.*})", text):
                    with contextlib.suppress(ValueError):
                        message = json.loads(found.group(1))
                        if fits(message):
                            return message
        raise LabError(f"the guest does not answer {line!r}\n{tail(os.path.join(self.folder(), 'console.log'))}")

    def execute(self, command, seconds=120):
        """Runs a command in the guest; returns the last line that it printed.

        An answer to an earlier command, which nobody waited for any more, must not pass for this
        one's: each has a number.
        """
        self.asked += 1
        mark = f"answer-{self.asked}"
        line = f'exec out=$( {{ {command}; }} 2>&1 ); echo "{mark} $? $(echo "$out" | tail -n 1)"'
        note = self.tell(line, lambda m: m.get("event") == "result" and m["note"].split(" ")[0] == mark, seconds)["note"]
        _, code, last = (note + " ").split(" ", 2)
        if code != "0":
            raise LabError(f"{command!r} failed in the guest: {last}")
        return last.strip()

    def until_ready(self, seconds=240):
        """Waits until the agent answers; it says only once that it is ready, perhaps to nobody."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.execute("true", 5)
            except (LabError, OSError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def check_pattern(self):
        """The file that is only in the guest's memory must be what it was."""
        found = self.execute(PATTERN_SUM)
        if found != self.pattern:
            again = self.execute(PATTERN_SUM)
            raise LabError(f"the guest's memory is not what it was: {found}, and then {again}, in place of "
                           f"{self.pattern}")

    def watch(self):
        """`vm console` must show what the guest says now."""
        line = [self.home.binary, "--home", self.home.home, "vm", "console", NAME]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as console:
            try:
                os.set_blocking(console.stdout.fileno(), False)
                shown = []

                def a_number():
                    shown.append((console.stdout.read() or b"").decode("utf-8", "replace"))
                    return TICK.search("".join(shown))

                wait_until("a number on the console", a_number, 60)
            finally:
                console.terminate()

    def said(self):
        """What the guest said since it began to run here."""
        path = os.path.join(self.folder(), "console.log")
        # A word may have been cut by the suspension: the end of it is in the next home's log.
        return read_text(path)[self.offset:] if os.path.exists(path) else ""

    def enter(self, at):
        """Goes to a home: what its console says from here on counts."""
        self.at = at
        path = os.path.join(self.folder(), "console.log")
        self.offset = len(read_text(path)) if os.path.exists(path) else 0

    def wait_for(self, ticks, seconds=120):
        """Waits until the guest has said so many numbers here."""
        try:
            wait_until(f"{ticks} numbers of the guest", lambda: len(TICK.findall(self.said())) >= ticks, seconds)
        except LabError as e:
            logs = [tail(os.path.join(self.folder(), log)) for log in ("keeper.log", "qemu.log", "console.log")]
            raise LabError("\n---\n".join([str(e), *logs])) from e


def stored_bytes(home):
    """Bytes of all objects in the store of a home."""
    return sum(os.path.getsize(os.path.join(directory, name))
               for directory, _, names in os.walk(os.path.join(home, "store")) for name in names)


def memory_and_all(server):
    """Bytes of the store's objects, but for the reserve of a directory store."""
    reserve = os.path.join(server.home, "store", "reserve#0")
    return stored_bytes(server.home) - (os.path.getsize(reserve) if os.path.exists(reserve) else 0)


def check_row(text):
    """The numbers of a text must be 1, 2, 3 ..."""
    numbers = [int(n) for n in TICK.findall(text)]
    if numbers != list(range(1, len(numbers) + 1)):
        raise LabError(f"the guest's numbers have a gap or a repetition: {numbers}")
    return len(numbers)


def hop(server, golden):
    """The machine hops; a keeper is killed in the middle of a suspension; the file system is sound."""
    elsewhere = Server(server.binary, server.home + "2")
    with elsewhere:
        elsewhere.command("init", "--store", os.path.join(server.home, "store"))
        server.command("disk", "create", "box", "--from", "debian")
        machine = Traveller(golden, server, elsewhere)
        machine.create()
        try:
            return travel(machine, server, golden)
        finally:
            for home in machine.homes:
                for words in (("vm", "stop", "--force", NAME), ("vm", "remove", NAME), ("drain", "--timeout", "5")):
                    with contextlib.suppress(LabError):
                        home.command(*words)


def travel(machine, server, golden):
    """The journey."""
    base = memory_and_all(server)
    machine.vm("start", NAME, "--qemu", machine.qemu())
    machine.until_ready()
    machine.execute("head -c 8388608 /dev/urandom > /run/pattern")
    machine.pattern = machine.execute(PATTERN_SUM)
    machine.execute(f"({COUNTER}) >/dev/null 2>&1 & sleep 0.1; echo started")
    machine.wait_for(4)
    facts, text = {"hops": []}, ""
    for number in range(1, 4):
        before = memory_and_all(server)
        stored = machine.vm("suspend", "--wait", NAME)
        text += machine.said()
        check_row(text)
        machine.enter(1 - machine.at)
        began = time.monotonic()
        resumed = machine.resume(NAME)
        machine.wait_for(1)
        first_output = time.monotonic() - began
        machine.wait_for(3)
        machine.check_pattern()
        facts["hops"].append({
            "parcel": stored["parcel"], "suspend_seconds": stored["stored_seconds"],
            "paused_seconds": stored["paused_seconds"], "memory_bytes": stored["memory_bytes"],
            "store_bytes": memory_and_all(server) - before, "changed": stored["changed_extents"],
            "full": stored["full_extents"], "resume_seconds": resumed["started_seconds"],
            "first_output_seconds": round(first_output, 2), "on_demand": resumed["memory_on_demand"]})
        if stored["parcel"] != f"{NAME}@{number}":
            raise LabError(f"parcel {stored['parcel']} in place of {NAME}@{number}")
    machine.watch()
    facts["checkpoint"] = machine.vm("checkpoint", NAME)
    text = killed(machine, text, facts)
    facts["numbers"] = check_row(text)
    facts["store_bytes_of_all"] = memory_and_all(server) - base
    machine.tell("poweroff", lambda m: m.get("event") == "poweroff")
    wait_until("the machine to end", lambda: machine.vm("show", NAME)["state"] != "running", 60)
    check_disk(machine, golden)
    return facts


def killed(machine, text, facts):
    """Kills the keeper in the middle of a suspension: the machine goes on from the parcel before, from a whole new one,
    or from what was kept here and did not go up."""
    whole = kept_here = 0
    for attempt in range(KILLS):
        # Something to store, so that it takes a while.
        machine.execute("head -c 20000000 /dev/urandom > /run/more")
        newest = machine.vm("show", NAME)["parcels"][-1]["parcel"]
        keeper = machine.vm("show", NAME)["running"]["keeper"]
        qemu = machine.vm("show", NAME)["running"]["qemu"]
        line = [machine.home.binary, "--home", machine.home.home, "--json", "vm", "suspend", "--wait", NAME]
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as asking:
            time.sleep(random.Random(attempt).uniform(0.1, 1.0))
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)
            asking.wait(60)
        wait_until("QEMU to end with its keeper", lambda: not running(qemu), 20)
        view = machine.vm("show", NAME)
        parcel = view["parcels"][-1]["parcel"]
        if view["state"] == "running":
            raise LabError("a machine whose keeper was killed is said to run")
        whole += parcel != newest
        # What the guest said after the parcel was made is undone with its disk.
        kept = text + machine.said()
        if view.get("pending"):
            kept_here += 1
            parcel = NAME
        else:
            machine.vm("rollback", parcel)
        machine.enter(machine.at)
        machine.resume(parcel)
        machine.wait_for(2)
        first = int(TICK.search(machine.said()).group(1))
        numbers = [int(n) for n in TICK.findall(kept)]
        if first > len(numbers) + 1:
            raise LabError(f"{parcel} goes on with {first}, after {numbers[-1]}")
        at = kept.find(f"TICK {first}.")
        text = kept if at < 0 else kept[:at]
        machine.execute("test $(cat /var/counter) -ge 1")
        machine.check_pattern()
        text_here = machine.said()
        check_row(text + text_here)
    facts["killed"] = {"attempts": KILLS, "whole_parcels": whole, "kept_here": kept_here}
    return text + machine.said()


def running(pid):
    """Whether a process runs, and is no zombie."""
    try:
        return read_text(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def starts(server):
    """Starts a server; False while another one has its home."""
    try:
        server.start()
    except LabError as e:
        if "is served by process" not in str(e):
            raise
        return False
    return True


def check_disk(machine, golden):
    """The guest's file system must be sound."""
    server = machine.home
    # A keeper that was killed leaves the server that it started.
    with contextlib.suppress(LabError):
        server.command("drain", "--timeout", "20")
    # One that is about to end answers no command any more, and has the home for a moment.
    wait_until("the home to be free", lambda: starts(server), 60)
    raw = os.path.join(server.sockets, "box.raw")
    run(["qemu-img", "convert", "-f", "raw", "-O", "raw", server.uri("box"), raw])
    offset = build.manifest(golden)["root_offset"]
    run(["e2fsck", "-fn", f"{raw}?offset={offset}"], env=dict(os.environ, PATH="/usr/sbin:/sbin:" + os.environ["PATH"]))
    os.unlink(raw)
    server.stop()
    shutil.rmtree(os.path.join(server.home, "machines"), ignore_errors=True)
