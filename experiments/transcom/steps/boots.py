"""Figure 10: how long clients boot that all boot at once, by what the server and the clients do about it."""

import contextlib
import csv
import glob
import gzip
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from . import common, emulator, plot, traces
from .common import MIB, TOP, percent, table
from .server import RATE, SEEK

sys.path.insert(0, os.path.join(TOP, "lab"))

from labkit import LabError  # noqa: E402
from labkit.server import Server  # noqa: E402
from labkit.shaped import ShapedLink  # noqa: E402
from labkit.shell import free_port, wait_until  # noqa: E402

#: whose boots these are: four guests of one image that booted side by side
LOAD, IMAGE = "storm4-base", "golden"
#: Guests ran emulated, which makes computing take 5 to 10 times as long, four of them on two processors.
THINK = 1 / 20
CLIENTS = (1, 10, 20, 30, 40, 50)
OPS = {"read": emulator.READ, "write": emulator.WRITE, "flush": emulator.FLUSH}
#: What all but "ours" go without: all that the paper's system does not have.
PLAIN = "[pieces]\nsize = {pieces}\n[serve]\nboot_lists = false\nboot_copies = false\nread_ahead = 0\n"
#: name: the server's configuration, and whether clients come by `attach`
STRATEGIES = {
    "baseline": ("[cache]\nsize = 0\npolicy = \"lru\"\nsingle_flight = false\n" + PLAIN.format(pieces=0), False),
    "small cache": ("[cache]\nsize = \"16MiB\"\npolicy = \"lru\"\n" + PLAIN.format(pieces=0), False),
    "small cache, FMPQ": ("[cache]\nsize = \"16MiB\"\npolicy = \"fmpq\"\n" + PLAIN.format(pieces=0), False),
    "A": ("[cache]\nsize = \"1GiB\"\npolicy = \"lru\"\n" + PLAIN.format(pieces=0), False),
    "A+B": ("[cache]\nsize = \"1GiB\"\npolicy = \"fmpq\"\n" + PLAIN.format(pieces=0), False),
    "A+B+C": (PLAIN.format(pieces="\"1GiB\""), True),
    "ours": ("", True),
}
#: What the clients' agents are told with A+B+C: FMPQ, nothing read ahead, and what is written stays.
AGENT = ("[cache]\npolicy = \"fmpq\"\n[serve]\nboot_lists = false\nread_ahead = 0\n[attach]\nafter_seconds = 86400\n")
#: of these only the largest number of clients is measured
ONCE = ("small cache", "small cache, FMPQ")
#: the paper's one number: all four strategies together, 50 clients
PAPER = 0.63


def figure10(sojourn, say):
    """Boots of 1 to 50 clients at once, on a real server, under the paper's strategies and with all that we have."""
    guests = recorded()
    if guests is None:
        say(f"without {LOAD}: its trace is not there")
        return
    began, load = time.monotonic(), os.getloadavg()[0]
    cells = []
    try:
        with tempfile.TemporaryDirectory(prefix="transcom.", dir="/tmp") as work, Lab(sojourn, work, guests) as lab:
            for strategy in STRATEGIES:
                if strategy == "ours":
                    lab.list_boots()
                for clients in CLIENTS[-1:] if strategy in ONCE else CLIENTS:
                    for cell in lab.measure(strategy, clients):
                        cells.append({**cell, "load_average": os.getloadavg()[0]})
                        say(f"{cell['strategy']}, {clients}: {statistics.mean(cell['boot']):.1f} s, of them "
                            f"{statistics.mean(cell['waiting']):.1f} waiting; disk {cell['disk_requests']} requests, "
                            f"{cell['disk_busy']:.1f} s")
    except LabError as e:
        raise common.Missing(str(e)) from e
    facts = {"trace": f"{LOAD}.csv.gz", "requests": [len(g) for g in guests],
             "read_bytes": [moved(g, emulator.READ) for g in guests],
             "written_bytes": [moved(g, emulator.WRITE) for g in guests],
             "thinking": [sum(r[0] for r in g) * THINK for g in guests],
             "seconds": time.monotonic() - began, "load_before": load}
    show({"facts": facts, "cells": cells})


def recorded():
    """The boots of the guests: (seconds of thinking before, op, offset, length) of each request until it was up."""
    path = os.path.join(traces.GUEST_TRACES, LOAD)
    if not os.path.exists(path + ".csv.gz"):
        return None
    with open(path + ".json", encoding="utf-8") as f:
        ends = {p["client"]: p["end_s"] for p in json.load(f)["phases"] if p["phase"] == "boot"}
    guests, last = {client: [] for client in sorted(ends)}, dict.fromkeys(ends, 0.0)
    with gzip.open(path + ".csv.gz", "rt", newline="") as f:
        for row in csv.DictReader(f):
            at, client = float(row["time_s"]), row["client"]
            if row["op"] in OPS and at <= ends[client]:
                guests[client].append((max(0.0, at - last[client]), OPS[row["op"]], int(row["offset"]),
                                       int(row["length"])))
                last[client] = max(last[client], at + float(row["dur_s"]))
    return list(guests.values())


def moved(guest, op):
    """Bytes that a guest read or wrote."""
    return sum(length for _, what, _, length in guest if what == op)


class Lab:
    """A store in a bucket whose disk has one arm, homes of servers on it, and clients."""

    def __init__(self, sojourn, work, guests):
        self.binary, self.work, self.guests, self.number = sojourn.binary, work, guests, 0
        self.maker = Server(self.binary, os.path.join(work, "maker"))
        self.homes, self.environment = {}, dict(os.environ)
        self.disk = None

    def __enter__(self):
        """Makes the image, the store, and the certificates."""
        buckets = os.path.join(self.work, "buckets")
        os.makedirs(os.path.join(buckets, "bucket"))
        self.maker.command("init", "--store", os.path.join(buckets, "bucket/store"))
        image = os.path.join(self.work, "image")
        blocks = {block for guest in self.guests for _, op, offset, length in guest if op != emulator.FLUSH
                  for block in range(offset // 4096, -(-(offset + length) // 4096))}
        with open(image, "wb") as f:
            for block in sorted(blocks):
                f.seek(block * 4096)
                f.write(os.urandom(4096))
            f.truncate(-(-(max(blocks) + 1) * 4096 // MIB) * MIB)
        self.maker.command("image", "import", image, IMAGE)
        self.maker.command("cert", "ca")
        self.maker.command("cert", "server", "localhost", "127.0.0.1")
        for client in range(1, max(CLIENTS) + 1):
            self.maker.command("cert", "client", f"c{client}")
        port = os.path.join(self.work, "port")
        script = os.path.join(os.path.dirname(os.path.realpath(__file__)), "bucket.py")
        self.disk = subprocess.Popen([sys.executable, script, buckets, port, "--seek", str(SEEK), "--rate", str(RATE)],
                                     stderr=subprocess.DEVNULL)
        wait_until("the slow disk", lambda: os.path.exists(port) and os.path.getsize(port), 20)
        with open(port, encoding="utf-8") as f:
            self.url = f"http://127.0.0.1:{f.read().strip()}"
        os.environ.update(AWS_ENDPOINT_URL=self.url, AWS_SKIP_SIGNATURE="true", AWS_REGION="lab")
        return self

    def __exit__(self, *_):
        self.disk.send_signal(signal.SIGTERM)
        self.disk.wait()
        self.maker.__exit__()
        for name in ("AWS_ENDPOINT_URL", "AWS_SKIP_SIGNATURE", "AWS_REGION"):
            os.environ.pop(name)
            if name in self.environment:
                os.environ[name] = self.environment[name]

    def arm(self):
        """What the disk did so far: requests, bytes, seconds."""
        with urllib.request.urlopen(self.url + "/arm") as answer:
            return [float(word) for word in answer.read().split()]

    def list_boots(self):
        """Gives the image the boot list that a first boot leaves there, and what it names side by side."""
        ranges = os.path.join(self.work, "boot.txt")
        with open(ranges, "w", encoding="utf-8") as f:
            f.writelines(f"{offset} {length}\n" for _, op, offset, length in self.guests[0] if op == emulator.READ)
        self.maker.command("image", "boot-list", "record", IMAGE, ranges)

    @contextlib.contextmanager
    def server(self, config, gateway):
        """A server that knows nothing yet."""
        self.number += 1
        home = os.path.join(self.work, f"server{self.number}")
        with Server(self.binary, home) as server:
            server.command("init", "--store", "s3://bucket/store")
            shutil.copytree(os.path.join(self.maker.home, "tls"), os.path.join(home, "tls"), dirs_exist_ok=True)
            rules = (f'access = [{{ certificate = "*", write = ["{{name}}-*"], read = ["{IMAGE}", "{IMAGE}:*"] }}, '
                     f'{{ uid = {os.getuid()}, write = ["*"] }}]\n')
            with open(os.path.join(home, "sojourn.toml"), "w", encoding="utf-8") as f:
                f.write('store = "s3://bucket/store"\n' + (rules if gateway else "") + config)
            yield server
            server.stop()
        shutil.rmtree(home)

    def measure(self, strategy, clients):
        """The cells of a strategy for so many clients: a first boot, and a second one where clients keep anything."""
        config, attached = STRATEGIES[strategy]
        if not attached:
            with self.server(config, False) as server:
                for client in range(1, clients + 1):
                    server.command("disk", "create", f"vm{client}-{self.number}", "--from", IMAGE, "--ephemeral")
                server.start()
                yield self.boots(strategy, [(server.socket, f"vm{client}-{self.number}")
                                            for client in range(1, clients + 1)])
            return
        port = free_port()
        with self.server(config, True) as server, contextlib.ExitStack() as stack:
            server.start(options=("--gateway", f"127.0.0.1:{port}"))
            # One client's bytes are counted; with more of them the counting would be in the way.
            link = stack.enter_context(ShapedLink(port, 40e9)) if clients == 1 else None
            agents = Agents(self, link.port if link else port, AGENT if strategy != "ours" else None)
            stack.callback(agents.end)
            exports = [agents.attach(client) for client in range(1, clients + 1)]
            for turn in ("", ", second boot"):
                before, wire = agents.read(), (link.down.bytes, link.up.bytes) if link else None
                cell = self.boots(strategy + turn, exports)
                cell["read_from_server"] = [now - then for now, then in zip(agents.read(), before, strict=True)]
                if link:
                    cell |= {"wire_down": link.down.bytes - wire[0], "wire_up": link.up.bytes - wire[1]}
                yield cell
            if link and strategy != "ours":
                # What the local shadow kept off the network, once somebody wants it at the server after all.
                sent = link.up.bytes
                agents.sync(1)
                yield {**cell, "strategy": strategy + ", all sent up", "boot": [0.0], "waiting": [0.0],
                       "wire_up": link.up.bytes - sent}

    def boots(self, strategy, exports):
        """Boots all of them at once."""
        before = self.arm()
        try:
            results = emulator.boot(exports, self.guests, THINK)
        except OSError as e:
            raise LabError(f"{strategy}, {len(exports)} clients: {e}") from e
        requests, size, busy = (now - then for now, then in zip(self.arm(), before, strict=True))
        return {"strategy": strategy, "clients": len(exports), "boot": [all_of_it for all_of_it, _ in results],
                "waiting": [waited for _, waited in results], "disk_requests": int(requests), "disk_bytes": int(size),
                "disk_busy": busy}


class Agents:
    """Clients' machines with attached disks: a home and an agent each."""

    def __init__(self, lab, port, config):
        self.lab, self.port, self.config = lab, port, config
        self.place = tempfile.mkdtemp(prefix="tc.", dir="/tmp")
        self.homes, self.own = [], []

    def attach(self, client):
        """Attaches a new disk on a new machine; the socket and the export."""
        disk = f"c{client}-{self.lab.number}"
        self.lab.maker.command("disk", "create", disk, "--from", IMAGE)
        self.lab.maker.command("disk", "release", disk)
        own = os.path.join(self.place, str(client))
        tls = os.path.join(self.lab.maker.home, f"tls/clients/c{client}")
        line = [self.lab.binary, "--home", own, "--json", "attach", disk, "--from", f"https://localhost:{self.port}",
                "--tls-dir", tls]
        if self.config and self.homes:
            # As the first one's, which the command has made, with another certificate.
            home = os.path.join(own, "attached", os.path.basename(self.homes[0]))
            os.makedirs(home, mode=0o700)
            self.configure(home, self.store, tls)
        made = run(line)
        if self.config and not self.homes:
            with open(os.path.join(made["home"], "sojourn.toml"), encoding="utf-8") as f:
                self.store = re.search(r'^store = "(.*)"$', f.read(), re.MULTILINE)[1]
            end(made["home"])
            self.configure(made["home"], self.store, tls)
            made = run(line)
        self.homes.append(made["home"])
        self.own.append(own)
        return made["socket"], disk

    def configure(self, home, store, tls):
        """Writes the configuration of an agent."""
        with open(os.path.join(home, "sojourn.toml"), "w", encoding="utf-8") as f:
            f.write(f'store = "{store}"\n[tls]\ndir = "{tls}"\n{self.config}')

    def read(self):
        """Bytes that each agent has read of the server so far."""
        return [run([self.lab.binary, "--home", home, "--json", "status"])["store"]["read_bytes"]
                for home in self.homes]

    def sync(self, client):
        """Has everything of a client go up."""
        done = subprocess.run([self.lab.binary, "--home", self.own[client - 1], "attach", "sync",
                               f"c{client}-{self.lab.number}"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"attach sync: {done.stderr.strip()}")

    def end(self):
        """Ends all agents, and drops what they have."""
        for home in glob.glob(os.path.join(self.place, "*/attached/*")):
            end(home)
        shutil.rmtree(self.place, ignore_errors=True)


def end(home):
    """Ends the agent of a home."""
    with contextlib.suppress(OSError, ValueError):
        with open(os.path.join(home, "lock"), encoding="utf-8") as f:
            pid = int("".join(filter(str.isdigit, f.read())))
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            if home.encode() not in f.read():
                return
        os.kill(pid, signal.SIGKILL)
        wait_until("the agent to end", lambda: not os.path.exists(f"/proc/{pid}/exe"), 20)


def run(line):
    """What a command prints with --json."""
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise LabError(f"{' '.join(line)} ended with {done.returncode}\n{done.stderr.strip()}")
    return json.loads(done.stdout)


def show(results):
    """The page and the plots of what was measured."""
    facts, cells = results["facts"], {(c["strategy"], c["clients"]): c for c in results["cells"]}
    names = list(dict.fromkeys(c["strategy"] for c in results["cells"] if c["boot"] != [0.0]))
    counts = sorted({c["clients"] for c in results["cells"]})
    most, each = counts[-1], len(facts["requests"])
    rows = []
    for name in names:
        for clients in counts:
            if (cell := cells.get((name, clients))) is None:
                continue
            base = cells.get(("baseline", clients))
            rows.append((name, clients, f"{mean(cell, 'boot'):.1f}",
                         f"{min(cell['boot']):.1f} to {max(cell['boot']):.1f}", f"{mean(cell, 'waiting'):.1f}",
                         "-" if base is None else percent(1 - mean(cell, "boot") / mean(base, "boot"), 0),
                         f"{cell['disk_requests']:,}", f"{cell['disk_bytes'] / MIB:.0f} MiB",
                         f"{cell['disk_busy']:.1f} s",
                         f"{statistics.mean(cell['read_from_server']) / MIB:.2f} MiB" if "read_from_server" in cell
                         else "-"))
    thinking = statistics.mean(facts["thinking"])
    loads = [c["load_average"] for c in results["cells"]]
    left = [str(n) for n in CLIENTS if n not in counts]
    missing = f" Not measured: {', '.join(left)} clients." if left else ""
    page = (f"# Figure 10: the time to boot, by strategy\n\nClients boot at once, each as one of {each} recorded guests "
            f"did ({facts['trace']}, until they were up: {statistics.mean(facts['requests']):.0f} requests,\n"
            f"{statistics.mean(facts['read_bytes']) / MIB:.1f} MiB read, "
            f"{statistics.mean(facts['written_bytes']) / MIB:.1f} MiB written). Every request waits for the one before, "
            f"and a client thinks between them\nas long as its guest did, times {THINK:g}: {thinking:.1f} s in all, which "
            f"no strategy can save. The store's disk has one arm: 6.76 ms\nfor 4 KiB, {RATE} MB/s. Shadows are on this "
            "machine's own disk, not on that one. Means over the clients of one run;\n"
            f"the whole took {facts['seconds'] / 60:.0f} minutes. The machine's load was {facts['load_before']:.1f} before "
            f"it and {min(loads):.1f} to {max(loads):.1f} during it.{missing}\n\n"
            + table(("strategy", "clients", "boot, s", "range", "of it waiting, s", "shorter than the baseline",
                     "requests to the disk", "bytes", "disk busy", "read by a client from the server"), rows) + "\n")
    page += legend() + wire(cells)
    shown = [name for name in names if "small" not in name]
    drawn = []
    for what, title in (("boot", "Boot"), ("waiting", "Waiting for storage")):
        series = [(name, [spread(cells.get((name, n)), what) for n in counts]) for name in shown]
        if what == "boot" and (base := cells.get(("baseline", most))):
            paper = [None] * (len(counts) - 1) + [mean(base, what) * (1 - PAPER)]
            series.append(("the paper: 63 % below the baseline", paper))
        drawn.append((f"figure10-{what}", plot.bars(f"{title}, mean and range of the clients", "clients",
                                                    "seconds (logarithmic)", counts, series, log_y=True)))
    common.keep("figure10", results, page, drawn)


def mean(cell, what):
    """Mean seconds over the clients of a cell."""
    return statistics.mean(cell[what])


def spread(cell, what):
    """Mean, least and most seconds of a cell's clients."""
    return None if cell is None else (mean(cell, what), max(0.01, min(cell[what])), max(0.01, *cell[what]))


def legend():
    """What the strategies are."""
    return ("\n| strategy | server | clients |\n|---|---|---|\n"
            "| baseline | no cache: every read is the disk's; those that are near each other and come within a millisecond are "
            "joined | NBD |\n"
            "| small cache | 16 MiB, LRU, or FMPQ | NBD |\n"
            "| A | 1 GiB, LRU | NBD |\n"
            "| A+B | 1 GiB, FMPQ | NBD |\n"
            "| A+B+C | 1 GiB of pieces of the store, which is what a gateway answers from | `attach`: a cache on disk, "
            "FMPQ in memory, what is written stays |\n"
            "| ours | as it is after `init`, with the boot list that a first boot has left | `attach` as it is |\n\n"
            "Second boots are of the same machines, which then have what the first ones fetched.\n")


def wire(cells):
    """What went over the network for one client, which was counted byte by byte."""
    rows = [(name, f"{c['wire_down'] / MIB:.2f} MiB", f"{c['wire_up'] / 1024:.0f} KiB")
            for (name, clients), c in cells.items() if clients == 1 and "wire_up" in c]
    if not rows:
        return ""
    return ("\nOver the network of one client, TLS and requests included:\n\n"
            + table(("strategy", "to the client", "to the server"), rows) + "\n")
