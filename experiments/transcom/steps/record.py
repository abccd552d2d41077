"""What the guests of `make demo` ask of their disks, as the server records it."""

import csv
import glob
import gzip
import io
import os
import subprocess
import sys

from . import traces
from .common import TOP, Missing

sys.path.insert(0, os.path.join(TOP, "lab"))

from labkit import LabError, demo  # noqa: E402
from labkit.golden import build  # noqa: E402
from labkit.server import Server  # noqa: E402


def record(sojourn, say):
    """The guests of the demonstration boot twice; the trace that their server records is kept."""
    home = os.path.join(sojourn.work, "home")
    try:
        golden = build.golden(say)
        with Server(sojourn.binary, home) as server:
            demo.prepare(server, golden)
            recording(os.path.join(home, "sojourn.toml"))
            server.start()
            demo.boot_all(server, golden, demo.write_marker)
            demo.boot_all(server, golden, demo.read_markers)
            server.stop()
    except LabError as e:
        raise Missing(str(e)) from e
    (recorded,) = glob.glob(os.path.join(home, "traces/*.sjt"))
    text = subprocess.check_output([sojourn.binary, "trace", "convert", recorded, "-", "--to", "csv"], text=True)
    # The server names a client by its process, which is another one after a reboot: the machine is its disk. As in
    # the other traces, all are on one disk, of which each has its own blocks once it has written them.
    rows = list(csv.DictReader(io.StringIO(text)))
    with gzip.GzipFile(traces.DEMO, "wb", 9, mtime=0) as packed, io.TextIOWrapper(packed, newline="") as f:
        out = csv.DictWriter(f, rows[0].keys(), lineterminator="\n")
        out.writeheader()
        out.writerows({**row, "client": row["disk"], "disk": "debian"} for row in rows)
    say(f"{len(rows)} requests in {os.path.relpath(traces.DEMO, TOP)}")


def recording(config):
    """Sets `trace.dir` in a configuration as `sojourn init` writes it."""
    with open(config, encoding="utf-8") as f:
        text = f.read()
    with open(config, "w", encoding="utf-8") as f:
        f.write(text.replace("[trace]\n", '[trace]\ndir = "traces"\n', 1))
