"""A server, links to it, and what an attached disk takes over them."""

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from labkit import LabError
from labkit.server import Server
from labkit.shaped import ShapedLink
from labkit.shell import free_port, wait_until

LINKS = {
    # Bits per second, seconds of a round trip, and how many times as fast as in truth it runs here.
    "100m": (100e6, 0.0, 1),
    "100m 20ms": (100e6, 0.020, 1),
    "10m": (10e6, 0.0, 1),
    "1m": (1e6, 0.010, 1),
    "100k": (100e3, 0.100, 10),
}
HELD = {"none": 0.0, "33": 0.33, "66": 0.66, "100": 1.0}
"""Parts of what is read that are on the medium."""
PATIENCE = 7200


class Place:
    """A server with a gateway, and disks of its images attached over links."""

    def __init__(self, binary, work):
        self.binary, self.work = binary, work
        self.server = Server(binary, os.path.join(work, "server"))
        self.port, self.number = free_port(), 0

    def open(self):
        """Lets the client in that every cell is, and starts the server."""
        command = self.server.command
        for words in (["ca"], ["server", "localhost", "127.0.0.1"], ["client", "lab"]):
            command("cert", *words)
        config = os.path.join(self.server.home, "sojourn.toml")
        with open(config, encoding="utf-8") as f:
            text = f.read()
        rules = (f'access = [{{ certificate = "lab", write = ["*"], read = ["*"] }}, '
                 f'{{ uid = {os.getuid()}, write = ["*"] }}]\n')
        with open(config, "w", encoding="utf-8") as f:
            f.write(rules + text)
        self.server.start(options=("--gateway", f"127.0.0.1:{self.port}"))

    @property
    def certificates(self):
        """The directory with the client's certificate."""
        return os.path.join(self.server.home, "tls/clients/lab")

    def disk(self, image):
        """A new disk that nobody holds."""
        self.number += 1
        name = f"disk{self.number}"
        self.server.command("disk", "create", name, "--from", image)
        self.server.command("disk", "release", name)
        return name

    def attached(self, image, link, medium, use):
        """Uses a new disk of an image, attached over a link, with a medium or none; what it took.

        `link` is as in `LINKS`; `use` is given the address of the disk and gives seconds.
        """
        rate, round_trip, speed = link
        disk = self.disk(image)
        home = tempfile.mkdtemp(prefix="at.", dir="/tmp")
        with ShapedLink(self.port, rate * speed, round_trip / speed) as shaped, agent(home):
            line = [self.binary, "--home", home, "--json", "attach", disk, "--from",
                    f"https://localhost:{shaped.port}", "--tls-dir", self.certificates]
            line += ["--source", medium] if medium else []
            began = time.monotonic()
            made = json.loads(run(line))
            attached = time.monotonic() - began
            before = shaped.down.bytes + shaped.up.bytes
            waiting = use(made["uri"])
            wire = shaped.down.bytes + shaped.up.bytes
            status = json.loads(run([self.binary, "--home", made["home"], "--json", "status"]))
        sources = {source["kind"]: source["bytes"] for source in status.get("sources", [])}
        chunks = sources.get("store", status["store"]["read_bytes"])
        return {"attach_seconds": attached * speed, "waiting_seconds": waiting * speed, "wire_bytes": wire,
                "attach_wire_bytes": before, "store_chunk_bytes": chunks, "medium_bytes": sources.get("media", 0),
                "speed": speed}

    def replay(self, trace, uri, *options):
        """Replays a trace, each request behind the one before; the seconds that all took."""
        line = [self.binary, "--json", "replay", trace, uri, "--timeout", "30m", *options]
        return json.loads(run(line))["seconds"]


@contextlib.contextmanager
def agent(home):
    """Ends the process of attached disks of a user's home, and drops all that it has."""
    try:
        yield
    finally:
        end_agent(home)
        shutil.rmtree(home, ignore_errors=True)


def end_agent(home):
    """Kills the process of attached disks of a user's home."""
    for lock in glob.glob(os.path.join(home, "attached/*/lock")):
        with contextlib.suppress(OSError, ValueError):
            with open(lock, encoding="utf-8") as f:
                pid = int("".join(filter(str.isdigit, f.read())))
            os.kill(pid, signal.SIGKILL)
            wait_until("the agent to end", lambda pid=pid: not os.path.exists(f"/proc/{pid}/exe"), 20)


def run(line):
    """Runs a command to its end; what it printed."""
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode:
        raise LabError(f"{' '.join(line)} ended with {done.returncode}\n{done.stderr.strip()}")
    return done.stdout
