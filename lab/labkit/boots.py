"""What a boot reads of its disk: recorded from a real guest through nbdkit's log."""

import os
import re
import subprocess
import tempfile

from .golden import build
from .guest import Guest
from .shell import wait_until, write_file

READ = re.compile(r" Read id=\d+ offset=0x([0-9a-f]+) count=0x([0-9a-f]+) ")


def recorded(folder, say=lambda text: None):
    """The file with the reads of a boot of the image in `folder`, a line `OFFSET LENGTH` for each.

    The guest is the unmodified system, from its kernel to the end of its start; what it writes is
    thrown away.
    """
    path = os.path.join(folder, "boot.txt")
    if os.path.exists(path):
        return path
    say("recording a boot")
    with tempfile.TemporaryDirectory(prefix="lab-boot.") as work:
        socket, log = os.path.join(work, "nbd.sock"), os.path.join(work, "log")
        command = ["nbdkit", "--foreground", "--exit-with-parent", "-U", socket, "-e", "disk",
                   "--filter=log", "--filter=cow", "file", os.path.join(folder, "golden.raw"), f"logfile={log}"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as server:
            try:
                wait_until("nbdkit", lambda: os.path.exists(socket), 20)
                with Guest(folder, f"nbd+unix:///disk?socket={socket}", profile="full", memory=512) as guest:
                    guest.start().ready()
                    guest.poweroff()
            finally:
                server.terminate()
        with open(log, encoding="utf-8") as f:
            reads = [f"{int(found[1], 16)} {int(found[2], 16)}\n" for found in map(READ.search, f) if found]
    size = build.manifest(folder)["virtual_bytes"]
    write_file(path + ".part", f"# {len(reads)} reads of a boot of a disk of {size} bytes\n" + "".join(reads))
    os.rename(path + ".part", path)
    return path
