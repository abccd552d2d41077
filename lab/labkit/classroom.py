"""A classroom: thirty machines without a disk from power-on to login.

Meanwhile their server is killed, comes back, and is lost for good to another one of the same store. Four are real
guests. The others are emulated: each asks by DHCP who starts it, fetches its script and what that names, and then does
to its disk what a real boot of the image did, comparing every byte that it reads.
"""

import contextlib
import os
import re
import threading
import time
import urllib.request
from dataclasses import dataclass, field

from . import LabError, boots, diskless, netboot
from .clients import ANSWER, IscsiConnection, KeptDisk, NbdConnection
from .guest import Card, Guest
from .netboot import BRIDGE, HERE, OTHER, PORT, STRANGER, Machine, Site
from .server import Server
from .shell import free_port, run, tail

GUESTS = (Machine("guest-1", 1, "nbd"), Machine("guest-2", 2, "iscsi"),
          Machine("guest-3", 3, "nbd"), Machine("guest-4", 4, "nbd", uefi="http", ipxe=False))
"""The real ones. The first two are there from the beginning, the others start when those are up: two processors
emulate two guests, not four."""
EMULATED = 26
FIRST = 200
"""The last number of the address of the first emulated machine, and of its card's."""
LEASE = 5
"""Seconds after which another server may take the disks of one that is silent."""
GONE = 2
"""Seconds that the killed server is away."""
PATIENCE = 400
"""Seconds for everything that has to happen before the next step."""
READS_PER_WRITE = 20
WRITTEN = 4096
SPARE = 8 << 20
"""Bytes at the end of the disk that no boot reads, but for its last MiB: they hold what emulated machines write."""
TAIL = 1 << 20
ROUNDS = 100
"""Operations of each of the four writers of a guest's load."""


@dataclass
class Emulated:
    """A machine whose boot is replayed, and how far it is."""

    machine: Machine
    address: str
    done: float = 0.0
    """The part of its boot that it has done."""
    waits: str = ""
    """What it waits for."""
    written: dict = field(default_factory=dict)
    """What it wrote and had answered, by offset."""
    reconnected: int = 0
    longest: float = 0.0

    @property
    def name(self):
        """Its name."""
        return self.machine.name


class LessonOver(Exception):
    """Another machine failed: this one gives up."""


class Lesson:
    """What happens in the classroom, and who fails first; every thread of it ends when one fails."""

    def __init__(self):
        self.failed, self.guests, self.lock = [], [], threading.Lock()
        self.over, self.killed, self.lost = threading.Event(), threading.Event(), threading.Event()

    def attend(self, name, work):
        """Does a machine's work; what fails is told with its name."""
        try:
            work()
        except LessonOver:
            pass
        except Exception as e:
            with self.lock:
                # What fails behind that is its consequence: guests are killed.
                if not self.over.is_set() or not self.failed:
                    self.failed.append(f"{name}: {e if isinstance(e, LabError) else repr(e)}")
            self.end()

    def end(self):
        """Has everything that still runs give up."""
        self.over.set()
        for guest in self.guests:
            if guest.process and guest.process.poll() is None:
                guest.process.kill()

    def wait(self, what, test):
        """Polls until `test()` is true; LabError with what is missing, or when a machine failed."""
        end = time.monotonic() + PATIENCE
        while missing := test():
            if self.over.is_set():
                raise LessonOver
            if time.monotonic() > end:
                raise LabError(f"{what}: not within {PATIENCE} s; missing: {missing}")
            time.sleep(0.1)

    def event(self, event):
        """Waits for an event of the lesson."""
        self.wait("the next step", lambda: None if event.is_set() else "the event")


def fetch(path):
    """A file of the boot server."""
    with urllib.request.urlopen(f"http://{HERE}:{PORT}{path}", timeout=ANSWER) as answer:
        return answer.read()


def power_on(site, one):
    """An emulated machine finds its disk as a real one does; a connection that stays."""
    offers = site.offers(one.machine.mac, 3)
    if offers != [HERE, OTHER]:
        raise LabError(f"offers come from {offers}")
    script = fetch(f"/boot.ipxe?mac={one.machine.mac}").decode()
    if one.machine.method == "iscsi":
        found = re.search(r"sanboot iscsi:([\d.]+)::(\d+):0:(\S+)", script)
        if not found:
            raise LabError(f"its script starts no disk over iSCSI: {script}")
        host, port, target = found.groups()
        return KeptDisk(lambda address: IscsiConnection(address, target, one.address), [(host, int(port))])
    found = re.search(r"sojourn\.disk=(\S+)", script)
    if not found:
        raise LabError(f"its script starts no kernel with a disk: {script}")
    for file in re.findall(rf"http://{HERE}:{PORT}(/machine/\S+)", script):
        if len(fetch(file)) < 1 << 20:
            raise LabError(f"{file} is no kernel and no initial RAM disk")
    servers = [re.fullmatch(r"nbd://([\d.]+):(\d+)/(\S+)", uri).groups() for uri in found.group(1).split(",")]
    export = servers[0][2]
    return KeptDisk(lambda address: NbdConnection(address, export, one.address),
                    [(host, int(port)) for host, port, _ in servers])


def boot(site, one, reads, golden, lesson):
    """Replays a boot on an emulated machine: its server is killed at a third of it, and lost at two thirds."""
    stops = {len(reads) // 3: ("the crash", lesson.killed), 2 * len(reads) // 3: ("the loss", lesson.lost)}
    first = os.path.getsize(os.path.join(golden, "golden.raw")) - SPARE
    with power_on(site, one) as disk, open(os.path.join(golden, "golden.raw"), "rb") as image:
        for number, (offset, length) in enumerate(reads):
            if lesson.over.is_set():
                raise LessonOver
            if number in stops:
                one.waits, event = stops[number]
                lesson.event(event)
                one.waits = ""
            # What it wrote is not among what it reads: a boot reads nothing there.
            if disk.read(offset, length) != os.pread(image.fileno(), length, offset):
                raise LabError(f"read {number}, {length} bytes at {offset}: they are not the image's")
            if number % READS_PER_WRITE == 0:
                at = first + (number // READS_PER_WRITE) * WRITTEN % (SPARE - TAIL)
                text = f"{one.name} wrote this behind read {number}. ".encode()
                data = (text * (WRITTEN // len(text) + 1))[:WRITTEN]
                disk.write(at, data)
                one.written[at] = data
            one.done = (number + 1) / len(reads)
        for at, data in one.written.items():
            if disk.read(at, len(data)) != data:
                raise LabError(f"{len(data)} bytes at {at}, which it wrote and had answered, are others now")
        one.reconnected, one.longest = disk.found_again - 1, disk.longest


def attend_guest(machine, golden, lesson, facts):
    """A real machine from power-on to login, under load while its server is lost."""
    card = Card(machine.tap, machine.mac, machine.card, machine.ipxe)
    with Guest(golden, None, name=machine.name, memory=768, card=card, uefi=machine.uefi) as guest:
        lesson.guests.append(guest)
        found = {"boot_seconds": guest.start().ready(timeout=PATIENCE)}
        guest.execute(f"(fsload /var/load {ROUNDS} >/run/load.log 2>&1 && touch /run/loaded) "
                      "</dev/null >/dev/null 2>&1 &")
        facts[machine.name] = found
        lesson.event(lesson.lost)
        login = guest.execute("until systemctl is-active -q serial-getty@ttyS0; do sleep 0.2; done; "
                              "systemctl is-active serial-getty@ttyS0", timeout=300)["note"]
        guest.execute("until [ -e /run/loaded ]; do sleep 0.2; done; echo 3 > /proc/sys/vm/drop_caches; "
                      "fsload --check /var/load", timeout=300)
        errors = guest.execute("dmesg | grep -ciE 'i/o error|aborting journal|remounting' || true")["note"]
        root = guest.execute("findmnt -no SOURCE /")["note"]
        guest.poweroff(timeout=120)
    found.update(login=login, errors=int(errors), root=root)


def has_root(server, machine):
    """Whether a real machine itself, and not the server that starts it, has its disk now."""
    exports = {export["name"]: export for export in server.command("status")["exports"]}
    client = exports.get(f"lab-{machine.name}", {}).get("client")
    return client not in (None, f"ip:{HERE}") and client.startswith("ip:")


def assign(server, machines):
    """Every machine gets a disk that outlives its server."""
    for machine in machines:
        server.command("machine", "assign", machine.mac, "--from", "debian", "--name", f"lab-{machine.name}",
                       "--method", machine.method, "--write-through")


def emulated_machines():
    """The emulated machines, half of them by each method, with an address each."""
    for number in range(FIRST, FIRST + EMULATED):
        method = ("nbd", "iscsi")[number % 2]
        yield Emulated(Machine(f"{method}-{number - FIRST + 1:02}", number, method), f"10.77.0.{number}")


def steps(lesson, servers, addresses, emulated, facts, start):
    """What befalls the server, each time in the middle of what the machines do."""
    server, other = servers
    nbd, spare, iscsi = addresses

    def at(what):
        return [one.name for one in emulated if one.waits != what]

    def without_root(machines):
        return [machine.name for machine in machines if not has_root(server, machine)]

    start(GUESTS[:2])
    lesson.wait("machines on their way", lambda: at("the crash") + without_root(GUESTS[:2]))
    server.crash()
    lesson.killed.set()
    time.sleep(GONE)
    server.start(nbd, options=["--iscsi", iscsi, "--insecure"])
    lesson.wait("the first machines' systems", lambda: [one.name for one in GUESTS[:2] if not facts.get(one.name)])
    start(GUESTS[2:])
    lesson.wait("the others on their way", lambda: at("the loss") + without_root(GUESTS[2:]))
    server.crash()
    lesson.lost.set()
    # The portal's address goes over, as initiators know no other one; NBD's clients know both servers.
    other.start(spare, options=["--iscsi", iscsi, "--insecure"])


def lesson_of(server, other, golden, site, reads):
    """The lesson: all machines from power-on to login; what they found."""
    addresses = [f"{HERE}:{free_port()}" for _ in range(3)]
    nbd, spare, iscsi = addresses
    emulated, facts, lesson, threads = list(emulated_machines()), {}, Lesson(), []
    server.start(nbd, options=["--iscsi", iscsi, "--insecure"])
    assign(server, [*GUESTS, *(one.machine for one in emulated)])
    for one in emulated:
        run(["ip", "addr", "add", f"{one.address}/24", "dev", BRIDGE])
    process, log = netboot.start(server, "--also", spare)

    def spawn(name, work):
        thread = threading.Thread(target=lesson.attend, args=(name, work))
        threads.append(thread)
        thread.start()

    def start(guests):
        for machine in guests:
            spawn(machine.name, lambda machine=machine: attend_guest(machine, golden, lesson, facts))

    try:
        stranger = site.offers(STRANGER, 3)
        for one in emulated:
            spawn(one.name, lambda one=one: boot(site, one, reads, golden, lesson))
        lesson.attend("the server", lambda: steps(lesson, (server, other), addresses, emulated, facts, start))
        for thread in threads:
            thread.join()
        if lesson.failed:
            halfway = ", ".join(f"{one.name} at {one.done:.0%}" for one in emulated if one.done < 1)
            said = "\n".join(f"--- {what} said\n{tail(path)}" for what, path in (
                ("netboot", log), ("the server", server.log), ("the other server", other.log),
                ("the DHCP server that is not ours", site.log)))
            raise LabError("\n".join(lesson.failed) + f"\nnot through: {halfway or 'no emulated machine'}\n{said}")
    finally:
        lesson.end()
        for thread in threads:
            thread.join()
        process.terminate()
        process.wait(30)
    return emulated, facts, stranger, spare


def classroom(server, golden):
    """Thirty machines come to their login while their server is killed and lost; an unknown one gets nothing."""
    with open(boots.recorded(golden), encoding="utf-8") as f:
        reads = [tuple(map(int, line.split())) for line in f if not line.startswith("#")]
    began = time.monotonic()
    with Site(server.sockets, GUESTS) as site, contextlib.ExitStack() as last:
        other = last.enter_context(Server(server.binary, server.home + "2"))
        other.command("init", "--store", os.path.join(server.home, "store"))
        for one in (server, other):
            one.configure("serve", f"lease_seconds = {LEASE}")
        emulated, facts, stranger, spare = lesson_of(server, other, golden, site, reads)
        waiting = [seen["mac"] for seen in server.command("machine", "list")["waiting"]]
        # The clients are gone without a word where they were killed: the server is started anew.
        other.stop()
        other.start(spare, options=["--insecure"])
        for one in emulated:
            disk = KeptDisk(lambda address, one=one: NbdConnection(address, f"lab-{one.name}", one.address),
                            [(HERE, int(spare.rsplit(":", 1)[1]))])
            with disk:
                wrong = [at for at, data in one.written.items() if disk.read(at, len(data)) != data]
            if wrong:
                raise LabError(f"{one.name}: what it wrote at {wrong} is not on its disk")
        for machine in GUESTS:
            try:
                diskless.fsck(other, f"lab-{machine.name}", "-n")
            except LabError as e:
                raise LabError(f"{machine.name}: its file system is damaged: {e}") from e
        other.stop()
    return {"emulated": len([one for one in emulated if one.done == 1]), "guests": facts, "waiting": waiting,
            "stranger_offers": stranger, "seconds": round(time.monotonic() - began),
            "reconnected_at_least": min(one.reconnected for one in emulated),
            "longest_wait": round(max(one.longest for one in emulated), 1),
            "writes": sum(len(one.written) for one in emulated)}
