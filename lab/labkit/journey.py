"""A machine hops between two homes while everything that it needs fails now and then.

The guest is that of `travel`: it counts, writes each number to its disk, syncs, and says it. Two homes, each on a
file system of its own, have their store in an S3 server, which each reaches over a link of its own. From a seed: a
keeper, QEMU, a server of disks, all of a home or the S3 server is killed, a link is cut, a file system runs full;
while the machine runs, is suspended, goes up, or goes on.

What is known of the guest is what it had said when it was last suspended. Wherever it goes on, its first number is the
next one. Whether a suspension that was interrupted counts is decided once, by what `vm show` says afterwards.
"""

import contextlib
import os
import random
import signal
import subprocess
import time

from . import LabError
from .bucket import STORE, Bucket
from .server import Server
from .shaped import ShapedLink
from .shell import tail, wait_until
from .travel import COUNTER, NAME, PATTERN_SUM, TICK, Traveller, check_disk, check_row, running

FAST = 1e9
"""Bits per second of a link."""
ROOM = 4096
"""MiB of each file system: more than is ever used, so that it is full when it is to be and at no other time."""
SLACK = 1
"""MiB that a full file system has left at the most."""
PATIENCE = 180
"""Seconds that anything may take that must happen."""
KEPT = 3
"""Parcels that are kept."""


class Room:
    """A file system of its own, which can be made full; a plain directory where nobody may mount one."""

    def __init__(self, path):
        self.path = path
        os.makedirs(path)
        self.is_mounted = self._size("rw", ROOM)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.is_mounted:
            subprocess.run(["umount", "-l", self.path], check=False, capture_output=True)

    def _size(self, how, mib):
        line = ["mount", "-t", "tmpfs", "-o", f"{how},size={mib}m", "none", self.path]
        return subprocess.run(line, check=False, capture_output=True).returncode == 0

    def fill(self):
        """Leaves next to no room. Whoever writes at that moment may keep it from that."""
        found = os.statvfs(self.path)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize >> 20
        return self._size("remount", used + SLACK)

    def empty(self):
        """There is room again."""
        wait_until(f"room in {self.path}", lambda: self._size("remount", ROOM), 20)


class Place(Server):
    """A home, the link by which it reaches its store, and the file system that it is on."""

    def __init__(self, binary, room, link):
        super().__init__(binary, os.path.join(room.path, "home"), Bucket.environment(link.port))
        self.room, self.link = room, link
        self.command("init", "--store", STORE)

    def processes(self):
        """What runs on this home."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                if self.home.encode() in f.read() and int(pid) != os.getpid():
                    yield int(pid)

    def kill_all(self):
        """All processes of the home end as if the host went down; its files stay."""
        found = list(self.processes())
        for pid in found:
            kill(pid)
        wait_until("the end of a home's processes", lambda: not any(running(pid) for pid in found), 30)


class Journey:
    """The machine and all that happens to it."""

    def __init__(self, golden, places, bucket, seed, say):
        self.machine, self.bucket, self.say = Traveller(golden, *places), bucket, say
        self.dice = random.Random(seed)
        # What the guest had said when each parcel or suspension was made; of a checkpoint, at least and at most.
        self.rows, self.row = {}, ""
        self.current, self.is_up = None, False
        # Whether the disk was taken from a host which is still said to run the machine.
        self.has_taken = False
        self.facts = {"troubles": {}, "lost": 0, "released": 0, "checkpoints": 0, "collections": 0, "verified": 0}

    # What is known.

    def show(self):
        """What the home says of the machine, once that is settled."""
        found = {}

        def is_settled():
            found.update(view=self.machine.vm("show", NAME))
            return found["view"]["state"] not in ("starting", "busy")

        try:
            wait_until("the machine to be settled", is_settled, PATIENCE)
        except LabError as e:
            raise LabError(f"{e}: {found.get('view')}") from e
        return found["view"]

    def newest(self, view):
        """The newest parcel's name."""
        return view["parcels"][-1]["parcel"] if view["parcels"] else None

    def cut_off(self):
        """What it has said until now counts; the machine does not run any more."""
        self.row += self.machine.said()
        check_row(self.row)
        self.machine.enter(self.machine.at)
        self.is_up = False

    def go_back(self, name):
        """What it said since a parcel was made is undone."""
        row = self.rows[name]
        self.row, self.facts["lost"] = row if isinstance(row, str) else row[0], self.facts["lost"] + 1
        self.machine.enter(self.machine.at)
        self.current, self.is_up = name, False

    def settle(self):
        """Finds out what has become of the machine.

        `running`, `here` (suspended, not in the store yet), `stored`, or `lost` (what it did since the last parcel).
        """
        view = self.show()
        if view["state"] == "running":
            if not self.is_up:
                raise LabError(f"the machine runs, and nobody had it go on: {view}")
            return "running"
        if view["state"] != "suspended" and not (self.has_taken and view["state"] == "elsewhere"):
            raise LabError(f"the machine is {view['state']}: {view}")
        pending, newest = view.get("pending"), self.newest(view)
        name = pending["parcel"] if pending else newest
        if pending and name == self.current and self.is_up:
            # It goes on once more from where it went on: its disk was not written meanwhile.
            self.row = self.rows[name]
            self.machine.enter(self.machine.at)
            self.is_up = False
        elif name not in self.rows:
            if self.is_up:
                self.cut_off()
            self.rows[name] = self.row
        elif self.is_up:
            return "lost"
        elif self.rows[name] != self.row and isinstance(self.rows[name], str):
            raise LabError(f"{name} is not what it was suspended as last: {view}")
        self.current = name
        return "here" if pending else "stored"

    def check_arrival(self):
        """The guest goes on with the number that is next, and its memory is what it was."""
        self.machine.wait_for(2, PATIENCE)
        bounds = self.rows.get(self.current)
        if isinstance(bounds, tuple):
            # It goes on from a checkpoint, which was made while it ran.
            first = int(TICK.search(self.machine.said()).group(1))
            least, most = (len(TICK.findall(text)) for text in bounds)
            if not least + 1 <= first <= most + 1:
                raise LabError(f"{self.current} goes on with {first}, in place of {least + 1} to {most + 1}")
            at = bounds[1].find(f"TICK {first}.")
            self.row = bounds[1] if at < 0 else bounds[1][:at]
            self.rows[self.current] = self.row
        check_row(self.row + self.machine.said())
        self.machine.check_pattern()
        wait_until("a number after that", lambda: len(TICK.findall(self.machine.said())) > 2, PATIENCE)

    # What is done.

    def resume(self):
        """Goes on where the machine is now, with what `settle` found."""
        reply = self.machine.resume(NAME)
        self.current, self.is_up, self.has_taken = reply["parcel"], True, False
        row = self.rows[self.current]
        if isinstance(row, str) and row != self.row:
            raise LabError(f"it goes on with {self.current}, and was suspended later")

    def resume_lost(self):
        """Goes back to the newest parcel, and goes on with it."""
        newest = self.newest(self.show())
        if self.dice.random() < 0.5:
            self.machine.vm("discard", NAME)
        else:
            with contextlib.suppress(LabError):
                self.machine.vm("rollback", newest)
            if self.settle() == "lost":
                self.machine.vm("discard", NAME)
        self.go_back(newest)
        self.resume()

    def go_on(self):
        """Has the machine run here, whatever happened to it."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                found = self.settle()
                if found == "running":
                    break
                self.resume_lost() if found == "lost" else self.resume()
            except LabError as e:
                # Its disk may have been written by then, and what was said with that is lost.
                self.say(f"it does not go on at once: {e.args[0].splitlines()[:2]}")
                if "was taken from this server" in str(e):
                    self.machine.home.command("disk", "remove", "box")
                elif "written since" in str(e):
                    self.is_up = True
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)
        self.check_arrival()

    def leave(self):
        """Has the machine suspended, and in the store."""
        end = time.monotonic() + PATIENCE
        while (found := self.settle()) != "stored":
            if found == "lost":
                self.resume_lost()
                self.check_arrival()
            try:
                self.machine.vm("suspend", "--wait", NAME)
            except LabError as e:
                self.say(f"it is not suspended at once: {e.args[0].splitlines()[:2]}")
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)
        self.have_released()

    def have_released(self):
        """Has a disk released whose keeper was killed before it could, by looking at the machines of the home."""
        note = os.path.join(self.machine.folder(), "unreleased")
        if not os.path.exists(note):
            return

        def is_released():
            self.machine.home.command("vm", "list")
            return not os.path.exists(note)

        wait_until("the disk to be released", is_released, PATIENCE)
        self.facts["released"] += 1

    def arrive(self, at, during=None):
        """Goes on in a home; `during` happens meanwhile."""
        self.machine.enter(at)
        self.forget_what_was_lost_here()
        if not during:
            return self.go_on()
        words = ["vm", "resume", "--trust-arguments", "--qemu", self.machine.qemu(), NAME]
        with self.asking(*words) as resuming:
            self.is_up = True
            during()
            resuming.wait(PATIENCE)
        return self.go_on()

    def forget_what_was_lost_here(self):
        """Drops a suspension that a home has of a machine that was taken from it."""
        home = self.machine.home
        if os.path.exists(self.machine.folder()) and home.command("vm", "show", NAME).get("pending"):
            home.command("vm", "discard", NAME)

    @contextlib.contextmanager
    def asking(self, *words):
        """A command that something happens to; it may fail, and ends."""
        home = self.machine.home
        line = [home.binary, "--home", home.home, "--json", *words]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(line, stdin=quiet, stdout=quiet, stderr=quiet, env=home.environment) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def victim(self, who):
        """The process id of something, if it runs."""
        view = {}
        with contextlib.suppress(LabError):
            view = self.machine.vm("show", NAME).get("running") or {}
        if who == "server":
            return self.machine.home.command("status").get("pid")
        return view.get(who)

    def pause(self, most=1.0):
        """Waits for a moment."""
        time.sleep(self.dice.uniform(0, most))

    # What happens.

    def kill_in(self, who, asking):
        """Kills something in the middle of what is asked for."""
        pid = self.victim(who)
        with self.asking(*asking) as process:
            self.pause()
            if who == "all":
                self.machine.home.kill_all()
            elif pid:
                kill(pid)
            process.wait(PATIENCE)
        if who in ("keeper", "all"):
            self.without_orphans()

    def without_orphans(self):
        """QEMU ends with its keeper."""
        folder = self.machine.folder().encode()

        def is_gone():
            for pid in self.machine.home.processes():
                with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                    line = f.read()
                    if b"-uuid" in line and folder in line:
                        return False
            return True

        wait_until("QEMU to end with its keeper", is_gone, 30)

    def running_killed(self):
        """A keeper, QEMU or all of a home is killed while the machine runs."""
        who = self.dice.choice(["keeper", "qemu", "all"])
        self.pause()
        if who == "all":
            self.machine.home.kill_all()
        else:
            kill(self.victim(who))
        self.without_orphans()
        self.until_not_running()
        if self.settle() != "lost":
            raise LabError(f"{who} was killed, and the machine is not lost")
        self.resume_lost()
        self.check_arrival()

    def until_not_running(self):
        """A keeper whose QEMU was killed ends soon."""
        wait_until("the machine to have ended", lambda: self.show()["state"] != "running", 60)

    def server_killed(self):
        """The server of the disk is killed while the machine runs: another one comes."""
        kill(self.victim("server"))
        before = len(TICK.findall(self.machine.said()))
        wait_until("numbers after the server was killed",
                   lambda: len(TICK.findall(self.machine.said())) > before + 2, PATIENCE)
        self.check_arrival()

    def suspending_killed(self):
        """Something is killed while the machine is suspended, or goes up."""
        self.make_changes()
        self.kill_in(self.dice.choice(["keeper", "qemu", "server", "all"]), ["vm", "suspend", "--wait", NAME])

    def sending_killed(self):
        """Something is killed while what was suspended goes up."""
        self.make_changes()
        self.machine.vm("suspend", NAME)
        self.settle()
        self.kill_in(self.dice.choice(["server", "all"]), ["vm", "suspend", "--wait", NAME])

    def suspended_and_resumed_here(self):
        """It goes on where it was suspended, whether or not it has gone up."""
        self.make_changes()
        self.machine.vm("suspend", NAME)
        self.pause(0.3)
        self.go_on()

    def link_cut(self):
        """The link is cut while the machine runs, and is suspended.

        A guest that waits for a page of its memory stands still in the middle of an instruction: then the suspension
        waits for the link, too.
        """
        self.make_changes()
        self.pause()
        self.machine.home.link.cut()
        try:
            with self.asking("vm", "suspend", NAME) as suspending:
                self.pause(4)
                self.machine.home.link.mend()
                suspending.wait(PATIENCE)
        finally:
            self.machine.home.link.mend()

    def sending_cut(self):
        """The link is cut while what was suspended goes up."""
        self.make_changes()
        with self.asking("vm", "suspend", "--wait", NAME) as suspending:
            self.pause()
            self.machine.home.link.cut()
            try:
                self.pause(4)
            finally:
                self.machine.home.link.mend()
            suspending.wait(PATIENCE)

    def bucket_killed(self):
        """The S3 server is killed, and started again."""
        self.make_changes()
        with self.asking("vm", "suspend", "--wait", NAME) as suspending:
            self.pause()
            self.bucket.crash()
            self.pause(3)
            self.bucket.start()
            suspending.wait(PATIENCE)

    def home_full(self):
        """The file system of the home runs full while the machine runs, and is suspended."""
        room = self.machine.home.room
        self.make_changes()
        room.fill()
        try:
            self.pause(2)
            with self.asking("vm", "suspend", NAME) as suspending:
                self.pause(2)
                room.empty()
                suspending.wait(PATIENCE)
        finally:
            room.empty()

    def store_full(self):
        """The file system of the S3 server runs full while what was suspended goes up."""
        self.make_changes()
        room = self.bucket.room
        room.fill()
        try:
            with self.asking("vm", "suspend", "--wait", NAME) as suspending:
                self.pause(3)
                room.empty()
                suspending.wait(PATIENCE)
        finally:
            room.empty()

    def host_lost(self):
        """The host goes down for good, as far as the other one knows, which takes the disk."""
        self.pause()
        self.machine.home.kill_all()
        newest = self.newest(self.show())
        if not newest:
            return
        # A suspension that did not go up is lost, too: its name is another parcel's then.
        known = [parcel["parcel"] for parcel in self.show()["parcels"]]
        self.rows = {name: row for name, row in self.rows.items() if name in known}
        self.machine.enter(1 - self.machine.at)
        self.forget_what_was_lost_here()
        self.machine.home.command("disk", "take", "--force", "box")
        self.go_back(newest)
        self.has_taken = True
        self.go_on()

    def checkpoint(self):
        """A parcel is made while it runs on."""
        least = self.row + self.machine.said()
        name = self.machine.vm("checkpoint", NAME)["parcel"]
        self.rows[name] = (least, self.row + self.machine.said())
        self.facts["checkpoints"] += 1
        self.machine.wait_for(2)
        if self.dice.random() < 0.5:
            self.running_killed()

    def nothing(self):
        """Nothing happens."""

    def make_changes(self):
        """The guest has something to store."""
        self.machine.execute(f"head -c {self.dice.randrange(1, 20)}000000 /dev/urandom > /run/more")

    def resuming_troubles(self):
        """What happens while a machine goes on, if anything."""
        home = self.machine.homes[1 - self.machine.at]

        def killed(who):
            def happens():
                self.pause()
                if who == "all":
                    home.kill_all()
                elif pid := self.victim(who):
                    kill(pid)
            return happens

        def cut():
            self.pause(0.6)
            home.link.cut()
            self.pause(4)
            home.link.mend()

        def full():
            home.room.fill()
            self.pause(2)
            home.room.empty()

        return {"none": None, "all": killed("all"), "keeper": killed("keeper"), "qemu": killed("qemu"),
                "server": killed("server"), "cut": cut, "full": full if home.room.is_mounted else None}

    def troubles(self):
        """What may happen in a hop."""
        all_of_them = [self.nothing, self.running_killed, self.server_killed, self.suspending_killed,
                       self.suspending_killed, self.sending_killed, self.suspended_and_resumed_here, self.link_cut,
                       self.sending_cut, self.bucket_killed, self.checkpoint, self.host_lost]
        if self.bucket.room.is_mounted:
            all_of_them += [self.home_full, self.store_full]
        return all_of_them

    def hop(self, number):
        """One hop."""
        trouble = self.dice.choice(self.troubles()) if number > 1 else self.nothing
        name, during = self.dice.choice(sorted(self.resuming_troubles().items(), key=lambda item: item[0]))
        began = time.monotonic()
        self.say(f"hop {number}: {trouble.__name__}, resume: {name}")
        trouble()
        self.leave()
        self.arrive(1 - self.machine.at, during)
        for what in (trouble.__name__, f"resume: {name}"):
            self.facts["troubles"][what] = self.facts["troubles"].get(what, 0) + 1
        self.say(f"hop {number}: {len(TICK.findall(self.row + self.machine.said()))} numbers, "
                 f"{time.monotonic() - began:.1f} s")
        if number % 5 == 0:
            self.look_after()

    def look_after(self):
        """Removes old parcels, and collects what nobody needs, while the machine runs."""
        home = self.machine.home
        for parcel in self.show()["parcels"][:-KEPT]:
            home.command("vm", "remove", parcel["parcel"])
            del self.rows[parcel["parcel"]]
        home.command("gc", "--grace", "0s")
        self.facts["collections"] += 1
        faults = home.command("verify")["faults"]
        if faults:
            raise LabError(f"the store is damaged: {faults}")
        self.facts["verified"] += 1

    def travel(self, hops):
        """The journey."""
        machine = self.machine
        machine.create()
        machine.vm("start", NAME, "--qemu", machine.qemu())
        self.is_up = True
        machine.until_ready()
        machine.execute("head -c 8388608 /dev/urandom > /run/pattern")
        machine.pattern = machine.execute(PATTERN_SUM)
        machine.execute(f"({COUNTER}) >/dev/null 2>&1 & sleep 0.1; echo started")
        machine.wait_for(2)
        for number in range(1, hops + 1):
            self.hop(number)
        numbers = check_row(self.row + machine.said())
        machine.execute("test $(cat /var/counter) -ge 1")
        machine.tell("poweroff", lambda m: m.get("event") == "poweroff")
        wait_until("the machine to end", lambda: self.show()["state"] != "running", 60)
        check_disk(machine, machine.golden)
        return {"hops": hops, "numbers": numbers, **self.facts}


def kill(pid):
    """Kills a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def journey(binary, golden, work, *, hops, seed, say):
    """A machine hops `hops` times; what came of it. Everything is in the directory `work`."""
    with contextlib.ExitStack() as all_of_it:
        rooms = [all_of_it.enter_context(Room(os.path.join(work, name))) for name in ("s3", "a", "b")]
        bucket = all_of_it.enter_context(Bucket(rooms[0].path, os.path.join(work, "sidecar")))
        bucket.room = rooms[0]
        links = [all_of_it.enter_context(ShapedLink(bucket.port, FAST)) for _ in rooms[1:]]
        places = [all_of_it.enter_context(Place(binary, *of)) for of in zip(rooms[1:], links, strict=True)]
        places[0].command("image", "import", os.path.join(golden, "golden.raw"), "debian")
        places[0].command("disk", "create", "box", "--from", "debian")
        going = Journey(golden, places, bucket, seed, say)
        try:
            return going.travel(hops)
        except Exception:
            for place in places:
                for log in ("keeper.log", "qemu.log", "console.log", "serve.log"):
                    path = os.path.join(place.home, "machines", NAME, log)
                    say(f"--- {path}\n{tail(path)}")
            raise
        finally:
            for place in places:
                place.kill_all()
