"""A home of Sojourn and its server, by the command line alone."""

import json
import os
import shutil
import signal
import subprocess
import tempfile

from . import LabError
from .shell import tail, wait_until


class Server:
    """One home and `sojourn serve` on it.  Leaving the context kills a server that still runs.

    Sockets are in a directory of their own under the temporary directory, because a unix
    socket's path has at most 107 bytes and a home may be anywhere.
    """

    def __init__(self, binary, home, environment=None):
        if not os.access(binary, os.X_OK):
            raise LabError(f"{binary} is not there; run make build")
        self.binary, self.home, self.environment = binary, home, environment
        self.sockets = tempfile.mkdtemp(prefix="lab-server.")
        self.socket = os.path.join(self.sockets, "nbd.sock")
        self.log = os.path.join(self.sockets, "serve.log")
        self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def command(self, *words):
        """Runs one command on the home; returns what it printed with --json."""
        line = [self.binary, "--home", self.home, "--json", *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=self.environment)
        if done.returncode:
            raise LabError(f"{' '.join(line)} ended with {done.returncode}\n{done.stderr.strip()}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def configure(self, section, line):
        """Puts a line into a section of the home's configuration, before the server is started."""
        path = os.path.join(self.home, "sojourn.toml")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if f"\n[{section}]\n" not in text:
            raise LabError(f"{path} has no section {section}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(f"\n[{section}]\n", f"\n[{section}]\n{line}\n", 1))

    def start(self, *listen, options=()):
        """Starts the server; returns when it accepts clients.  `listen` are more NBD addresses."""
        addresses = [f"unix:{self.socket}", *listen]
        line = [self.binary, "--home", self.home, "serve"]
        for address in addresses:
            line += ["--nbd", address]
        line += options
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=self.environment)

        def up():
            if self.process.poll() is not None:
                raise LabError(f"the server ended with {self.process.returncode}\n{tail(self.log)}")
            return os.path.exists(self.socket) and self.command("status").get("running")

        wait_until("the server to come up", up, 20)

    def crash(self):
        """Kills the server as a fault of its own would."""
        self.process.kill()
        self.process.wait()

    def uri(self, export):
        """The NBD address of an export on the unix socket."""
        return f"nbd+unix:///{export}?socket={self.socket}"

    def stop(self):
        """Stops the server as an administrator does; LabError when it does not end well."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired as e:
            raise LabError(f"the server did not stop within 30 s of SIGTERM\n{tail(self.log)}") from e
        if code:
            raise LabError(f"the server ended with {code} after SIGTERM\n{tail(self.log)}")
        if os.path.exists(self.socket):
            raise LabError(f"the server left its socket {self.socket} behind")
