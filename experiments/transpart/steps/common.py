"""Disks of owners, slow sources, and commands that are timed."""

import contextlib
import json
import os
import random
import subprocess
import time

from labkit import LabError
from labkit.owner import ENVIRONMENT, debugfs, run_any
from labkit.shell import run

USB = ("rate=160M", "burstiness=0.1", "rdelay=1ms", "wdelay=8ms")
"""The USB key: 160 Mbit/s (20 MB/s) either way, 1 ms for each read and 8 ms for each write. An
assumption about a USB 2 key, not a measurement of one."""


def owner(path, size, rounds, seed=7):
    """An ext4 of `size` bytes, 45 % full. It was filled to 90 % and emptied by half `rounds` times.

    Files take their blocks without data (fallocate), so that it is made quickly and without a mount.
    """
    generator, live, script, made, used = random.Random(seed), [], [], 0, 0
    with open(path, "wb") as f:
        f.truncate(size)
    run(["mke2fs", "-q", "-F", "-t", "ext4", path], env=ENVIRONMENT)
    blocks = size // 4096
    for _ in range(max(1, rounds)):
        while used < blocks * (0.9 if rounds else 0.45):
            length = min(1 + int(generator.lognormvariate(2.5, 2.2)), blocks // 64)
            folder, name = f"d{made // 200}", f"d{made // 200}/f{made}"
            if made % 200 == 0:
                script.append(f"mkdir {folder}")
            script += [f"write /dev/null {name}", f"fallocate {name} 0 {length - 1}"]
            live.append((name, length))
            made, used = made + 1, used + length
        generator.shuffle(live)
        while rounds and used > blocks * 0.45:
            name, length = live.pop()
            script.append(f"rm {name}")
            used -= length
    debugfs(path, "\n".join(script), write=True)
    if run_any(["e2fsck", "-fy", path]) not in (0, 1):
        raise LabError(f"e2fsck could not prepare {path}")
    return path


@contextlib.contextmanager
def nbdkit(path, socket, *filters):
    """Serves a file; with filters, as slowly as USB keys are."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(socket)
    words = ["nbdkit", "-f", "-U", socket, "file", path]
    if filters:
        words[1:1] = ["--filter=rate", "--filter=delay"]
        words += filters
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            end = time.monotonic() + 10
            while not os.path.exists(socket):
                if server.poll() is not None or time.monotonic() > end:
                    raise LabError(f"{' '.join(words)} does not come up")
                time.sleep(0.01)
            yield f"nbd+unix:///?socket={socket}"
        finally:
            server.terminate()


class Borrow:
    """`sojourn borrow` with a home of its own."""

    def __init__(self, binary, home):
        if not os.access(binary, os.X_OK):
            raise LabError(f"{binary} is not there; run make build")
        self.line = [binary, "--home", home, "--json", "borrow"]
        if not os.path.exists(home):
            run([binary, "--home", home, "init"])

    def ask(self, *words):
        """What a command prints."""
        done = subprocess.run([*self.line, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"borrow {' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def up(self, *words):
        """A borrowed disk; gives the seconds until it can be used, and its status."""
        began = time.monotonic()
        with subprocess.Popen([*self.line, "up", *words], stdout=subprocess.PIPE, text=True) as process:
            try:
                text = ""
                for line in process.stdout:
                    text += line
                    if line.startswith("}"):
                        break
                took = time.monotonic() - began
                if not text:
                    raise LabError(f"borrow up {' '.join(words)} ended with {process.wait()}")
                yield took, json.loads(text)
            finally:
                if process.poll() is None:
                    process.kill()


def timed(work):
    """The seconds that some work takes, and what it gives."""
    began = time.monotonic()
    result = work()
    return time.monotonic() - began, result


def fio(uri, *words):
    """One fio job on an NBD address; its JSON."""
    line = ["fio", "--output-format=json", "--ioengine=nbd", f"--uri={uri}", "--thread", "--name=job", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(line)}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]


def rows(head, body):
    """A table for a page."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in body]
    return "\n".join(lines) + "\n"
