"""A QEMU monitor connection."""

import json
import socket

from . import LabError


class Qmp:
    """Speaks QMP over a unix socket, one command at a time; events are skipped."""

    def __init__(self, path, timeout=20):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.file = self.socket.makefile("rw")
        self._message()
        self.command("qmp_capabilities")

    def _message(self):
        try:
            line = self.file.readline()
        except TimeoutError as e:
            raise LabError("the monitor does not answer") from e
        if not line:
            raise LabError("the monitor closed")
        return json.loads(line)

    def command(self, name, **arguments):
        """Runs one command and returns its answer; LabError when QEMU refuses it."""
        message = {"execute": name}
        if arguments:
            message["arguments"] = {k.replace("_", "-"): v for k, v in arguments.items()}
        self.file.write(json.dumps(message) + "\n")
        self.file.flush()
        while True:
            answer = self._message()
            if "error" in answer:
                raise LabError(f"{name}: {answer['error'].get('desc')}")
            if "return" in answer:
                return answer["return"]

    def close(self):
        """Ends the connection; QEMU goes on."""
        self.file.close()
        self.socket.close()
