"""Small helpers around processes, files and time."""

import contextlib
import fcntl
import os
import socket
import subprocess
import time

from . import LabError


def run(command, **options):
    """Runs a command to its end and returns what it printed; LabError when it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False, **options)
    except FileNotFoundError as e:
        raise LabError(f"{command[0]} is not installed; run scripts/setup demo test") from e
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed ({done.returncode})\n{done.stdout[-4000:]}")
    return done.stdout


def write_file(path, text, mode=0o644):
    """Writes a text file and the directories above it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, mode)


def read_bytes(path):
    """A whole file."""
    with open(path, "rb") as f:
        return f.read()


def read_text(path):
    """A whole text file; broken bytes are shown, not fatal."""
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def tail(path, lines=25):
    """The last lines of a log, or nothing when there is no such file."""
    try:
        return "\n".join(read_text(path).splitlines()[-lines:])
    except OSError:
        return ""


@contextlib.contextmanager
def locked(path):
    """Holds an exclusive lock on a file; waits for another holder to finish."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def free_port():
    """A TCP port of the loopback address that nobody listens on at this moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(what, test, seconds):
    """Polls until `test()` is true; LabError naming `what` when time runs out."""
    end = time.monotonic() + seconds
    while not test():
        if time.monotonic() > end:
            raise LabError(f"{what}: not within {seconds:g} s")
        time.sleep(0.02)
