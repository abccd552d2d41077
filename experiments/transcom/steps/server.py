"""A server whose store is behind a disk with one arm, like the one of the paper's table 1."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile

from .common import MIB, TOP

sys.path.insert(0, os.path.join(TOP, "lab"))

from labkit.server import Server  # noqa: E402
from labkit.shell import wait_until  # noqa: E402

#: milliseconds and MB/s of a disk that takes 6.76 ms for 4 KiB and 7.2 ms for 32 KiB
SEEK, RATE = 6.697, 65
IMAGE, CACHE = 256 * MIB, 48 * MIB
DISK = os.path.join(TOP, "experiments/predict/slow-store")


@contextlib.contextmanager
def slow(binary, say):
    """A server with an image of random bytes, `golden`, on that disk."""
    with tempfile.TemporaryDirectory(prefix="transcom.") as place:
        say("making a server behind a slow disk")
        image = os.path.join(place, "image")
        with open(image, "wb") as f:
            for _ in range(IMAGE // MIB):
                f.write(os.urandom(MIB))
        maker = Server(binary, os.path.join(place, "maker"))
        maker.command("init")
        maker.command("image", "import", image, "golden")
        maker.command("store", "publish")
        port = os.path.join(place, "port")
        disk = subprocess.Popen([DISK, os.path.join(place, "maker/store"), port, "--seek", str(SEEK), "--rate",
                                 str(RATE)], stderr=subprocess.DEVNULL)
        try:
            wait_until("the slow disk", lambda: os.path.exists(port) and os.path.getsize(port), 20)
            with open(port, encoding="utf-8") as f:
                url = f"http://127.0.0.1:{f.read().strip()}"
            with Server(binary, os.path.join(place, "home")) as served:
                served.command("init", "--store", url)
                with open(os.path.join(served.home, "sojourn.toml"), "w", encoding="utf-8") as f:
                    # No copies on a faster disk, no lists: every miss is a read of the slow one.
                    f.write(f'store = "{url}"\n[cache]\nsize = {CACHE}\npolicy = "lru"\n[pieces]\nsize = 0\n'
                            "[serve]\nboot_lists = false\n")
                served.start()
                yield served
                served.stop()
        finally:
            disk.send_signal(signal.SIGTERM)
            disk.wait()
