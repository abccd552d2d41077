"""What others do over the same links: plain NBD (nbdkit with the raw image), and desync's `mount-index`."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile

from labkit import LabError
from labkit.shaped import ShapedLink
from labkit.shell import free_port, wait_until
from place import run


@contextlib.contextmanager
def exported(path, port=None, read_only=True):
    """The address of nbdkit with a file; of what is written to it, nothing is kept."""
    port = port or free_port()
    line = ["nbdkit", "-f", "--exit-with-parent", "-p", str(port), "-i", "127.0.0.1"]
    line += ["-r", "file", path] if read_only else ["--filter=cow", "file", path]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL) as nbdkit:
        try:
            wait_until("nbdkit", lambda: answers(port), 20)
            yield f"nbd://127.0.0.1:{port}/"
        finally:
            nbdkit.terminate()


def answers(port):
    """Whether somebody listens at a port."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def nbd(raw, link, use, read_only=True):
    """What it took to use a disk over plain NBD: `use` is given its address and gives seconds."""
    rate, round_trip, speed = link
    port = free_port()
    with exported(raw, port, read_only), ShapedLink(port, rate * speed, round_trip / speed) as shaped:
        waiting = use(f"nbd://127.0.0.1:{shaped.port}/")
        wire = shaped.down.bytes + shaped.up.bytes
    return {"waiting_seconds": waiting * speed, "wire_bytes": wire, "speed": speed}


class Desync:
    """An image chunked by desync, and its server.  Use it as a context manager."""

    def __init__(self, binary, raw, work):
        self.binary, self.store = binary, os.path.join(work, "desync")
        self.index = os.path.join(work, "image.caibx")
        self.port = free_port()
        self.server = None
        if not os.path.exists(self.index):
            os.makedirs(self.store)
            run([binary, "make", "-s", self.store, self.index, raw])

    def __enter__(self):
        line = [self.binary, "chunk-server", "-s", self.store, "-l", f"127.0.0.1:{self.port}"]
        self.server = subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until("desync", lambda: answers(self.port), 20)
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()

    def mounted(self, link, use, read_only=True):
        """What it took to use the image, mounted over a link with an empty cache.

        `use` is given the address of its export and gives seconds.
        """
        rate, round_trip, speed = link
        folder = tempfile.mkdtemp(prefix="desync.", dir="/tmp")
        mount, cache = os.path.join(folder, "mount"), os.path.join(folder, "cache")
        for path in (mount, cache):
            os.mkdir(path)
        image = os.path.join(mount, os.path.basename(self.index).removesuffix(".caibx"))
        with ShapedLink(self.port, rate * speed, round_trip / speed) as shaped:
            store = f"http://127.0.0.1:{shaped.port}/"
            line = [self.binary, "mount-index", "-s", store, "-c", cache, self.index, mount]
            with subprocess.Popen(line, stdin=subprocess.DEVNULL) as mounter:
                try:
                    wait_until("the mount of desync", lambda: os.path.exists(image) or mounter.poll() is not None, 60)
                    if mounter.poll() is not None:
                        raise LabError(f"desync mount-index ended with {mounter.returncode}")
                    with exported(image, read_only=read_only) as uri:
                        waiting = use(uri)
                    wire = shaped.down.bytes + shaped.up.bytes
                finally:
                    subprocess.run(["umount", mount], check=False)
                    mounter.terminate()
        shutil.rmtree(folder, ignore_errors=True)
        return {"waiting_seconds": waiting * speed, "wire_bytes": wire, "speed": speed}
