"""What else there is: all of the memory is copied, and then the machine goes on.

QEMU writes the memory of the same guest into a file, and another QEMU goes on with it once that has come over the
link: as it is (what `virsh save` and `scp` do), compressed by zstd (libvirt's `save_image_format`), straight into the
QEMU that waits for it (the stream of a migration), or as a file of QEMU 9 and newer in which each page has a place of
its own (`mapped-ram`). The disk is on both sides already, which is to their favour. Links of 1 Mb/s and less are
reckoned: the bytes at the link's rate, and the rest as it was at 100 Mb/s.
"""

import contextlib
import hashlib
import os
import socket
import subprocess
import threading
import time

from labkit import LabError
from labkit.guest import Guest
from labkit.shaped import ShapedLink
from labkit.shell import free_port, read_text, run, wait_until

MEASURED = ("100m", "10m")
COPIED, PACKED, STREAMED, MAPPED = WAYS = ("copied", "zstd", "stream", "mapped-ram")
PIECE = 1 << 20
CHUNK = 256 << 10
PATIENCE = 1200


class SavedGuest:
    """A guest that counts, saved by QEMU alone.  `qemu` is another one than the laboratory's."""

    def __init__(self, golden, work, counting, memory, qemu=None):
        self.golden, self.work, self.memory, self.qemu = golden, work, memory, qemu
        self.counter, self.tick = counting
        self.disk, self.facts = os.path.join(work, "others.raw"), {}

    def _guest(self, *options):
        guest = Guest(self.golden, self.disk, profile="full", memory=self.memory)
        if self.qemu:
            guest.command[0] = self.qemu
        guest.command += options
        return guest

    def save(self, way):
        """Boots the guest, and saves it; returns the file that has to come over a link."""
        path = os.path.join(self.work, f"others-{way}")
        run(["cp", "--sparse=always", os.path.join(self.golden, "golden.raw"), self.disk])
        with self._guest() as guest:
            guest.start().ready(timeout=300)
            guest.execute(f"({self.counter}) >/dev/null 2>&1 & sleep 0.1; echo started")
            wait_until("the guest to count", lambda: len(self.tick.findall(read_text(guest.console))) >= 20, 120)
            guest.monitor.command("stop")
            began = time.monotonic()
            guest.monitor.command("migrate-set-parameters", max_bandwidth=1 << 40)
            set_way(guest, way)
            kept = {PACKED: f"exec:zstd -q -1 -T0 >{path}", MAPPED: f"file:{path}"}
            guest.monitor.command("migrate", uri=kept.get(way, f"exec:cat >{path}"))
            wait_until("QEMU to save the guest", lambda: is_saved(guest), 300)
            self.facts = {"saved_seconds": time.monotonic() - began}
            guest.monitor.command("quit")
            guest.process.wait()
        self.facts["bytes"] = sum(length for _, length in parts(path))
        if way == MAPPED:
            self.facts["chunked_bytes"] = chunked(path)
        return path

    def resume(self, way, path, rate, round_trip):
        """Has the file come over a link, and the guest go on; the seconds until it says something."""
        began, port = time.monotonic(), free_port()
        far = os.path.join(self.work, "others-far")
        if way != STREAMED:
            with Receiver(port, far), ShapedLink(port, rate, round_trip) as link:
                send(path, link.port)
            if way == MAPPED:
                # What came without its holes is put in its place again by whoever copies such files.
                began += copied(path, far)
        with self._guest("-incoming", "defer") as guest:
            guest.start()
            set_way(guest, way)
            come = {STREAMED: f"tcp:127.0.0.1:{port}", PACKED: f"exec:zstd -q -dc {far}", MAPPED: f"file:{far}"}
            guest.monitor.command("migrate-incoming", uri=come.get(way, f"exec:cat {far}"))
            if way == STREAMED:
                with ShapedLink(port, rate, round_trip) as link:
                    send(path, link.port)
                    self._wait_for_state(guest)
            else:
                self._wait_for_state(guest)
            guest.monitor.command("cont")
            wait_until("the guest to speak", lambda: self.tick.search(read_text(guest.console)), 60)
            return time.monotonic() - began

    @staticmethod
    def _wait_for_state(guest):
        wait_until("QEMU to load the guest",
                   lambda: guest.monitor.command("query-status")["status"] != "inmigrate", PATIENCE)


def set_way(guest, way):
    """Has QEMU use the file that a way has."""
    if way == MAPPED:
        capability = {"capability": "mapped-ram", "state": True}
        guest.monitor.command("migrate-set-capabilities", capabilities=[capability])


def is_saved(guest):
    """Whether all of a guest is saved."""
    status = guest.monitor.command("query-migrate").get("status")
    if status == "failed":
        raise LabError("QEMU cannot save the guest")
    return status == "completed"


def parts(path):
    """The parts of a file that have data: where, and how long."""
    with open(path, "rb") as f, contextlib.suppress(OSError):
        end = 0
        while True:
            start = os.lseek(f.fileno(), end, os.SEEK_DATA)
            end = os.lseek(f.fileno(), start, os.SEEK_HOLE)
            yield start, end - start


def chunked(path):
    """What the data of a file takes in chunks of 256 KiB, each packed by zstd, of which equal ones are kept once."""
    known, total = set(), 0
    with open(path, "rb") as f:
        while chunk := f.read(CHUNK):
            name = hashlib.sha256(chunk).digest()
            if name not in known and any(chunk):
                known.add(name)
                packed = subprocess.run(["zstd", "-q", "-2", "-c"], input=chunk, capture_output=True, check=True).stdout
                total += len(packed)
    return total


def send(path, port):
    """Sends the data of a file to a port, without its holes; returns once all is on its way."""
    with socket.create_connection(("127.0.0.1", port)) as s, open(path, "rb") as f:
        for start, length in parts(path):
            s.sendfile(f, start, length)
        s.shutdown(socket.SHUT_WR)
        # The other end closes when it has all.
        s.recv(1)


def copied(path, to):
    """Makes a copy with the same holes; the seconds that it took."""
    began = time.monotonic()
    run(["cp", "--sparse=always", path, to])
    return time.monotonic() - began


class Receiver:
    """Writes what comes to a port into a file.  Use it as a context manager: leaving waits for the end."""

    def __init__(self, port, path):
        self.path, self.listener = path, socket.create_server(("127.0.0.1", port))
        self.thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.thread.join()
        self.listener.close()

    def _receive(self):
        client, _ = self.listener.accept()
        with client, open(self.path, "wb") as f:
            while data := client.recv(PIECE):
                f.write(data)


def measure(saved, links, keep, say):
    """A cell for each way and link; `links` has bits per second and the round trip of each."""
    for way in WAYS:
        try:
            path = saved.save(way)
        except LabError as e:
            say(f"{way}: {e}")
            continue
        say(f"{way}: {saved.facts['bytes'] / 2**20:.1f} MiB")
        quick = None
        for link, (rate, round_trip, *_) in links.items():
            cell = {"way": way, "link": link, **saved.facts, "load": os.getloadavg()[0]}
            on_the_link = saved.facts["bytes"] * 8 / rate
            if link in MEASURED:
                cell["output_seconds"] = saved.resume(way, path, rate, round_trip)
                quick = cell["output_seconds"] - on_the_link if quick is None else quick
            elif quick is not None:
                cell |= {"output_seconds": on_the_link + quick, "reckoned": True}
            else:
                continue
            keep(cell)
        os.remove(path)
