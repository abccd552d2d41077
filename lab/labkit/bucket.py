"""An S3 server with a bucket: versitygw, over a directory."""

import os
import shutil
import socket
import subprocess

from . import WORK, LabError
from .shell import free_port, wait_until

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
STORE = "s3://bucket/lab"
"""What a home on it is made with."""


class Bucket:
    """An S3 server whose bucket is a directory in `work`.  Use it as a context manager.

    What it keeps beside each object is in `sidecar`, in `work`, too, if nothing is said: that should not run full, for
    versitygw refuses an object then whose data it has, and says ever after that it is there and that it is not.
    """

    def __init__(self, work, sidecar=None):
        built = os.path.join(WORK, "bin/versitygw")
        self.program = built if os.path.exists(built) else shutil.which("versitygw")
        if not self.program:
            raise LabError(f"{built} is not there; run scripts/setup s3")
        self.data, self.sidecar = os.path.join(work, "data"), sidecar or os.path.join(work, "sidecar")
        os.makedirs(os.path.join(self.data, "bucket"))
        os.mkdir(self.sidecar)
        self.port, self.process = free_port(), None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.crash()

    def start(self):
        """Starts it; returns when it listens."""
        access, secret = KEYS.values()
        line = [self.program, "--access", access, "--secret", secret, "--quiet", "--port",
                f"127.0.0.1:{self.port}", "posix", "--sidecar", self.sidecar, self.data]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(line, stdin=quiet, stdout=quiet, stderr=quiet)

        def listens():
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until("the S3 server to listen", listens, 30)

    def crash(self):
        """Kills it."""
        self.process.kill()
        self.process.wait()

    @staticmethod
    def environment(port):
        """What those have in their environment who reach it at a port."""
        return {**os.environ, **KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
