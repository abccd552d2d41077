"""A cable with a round-trip time.

It carries frames between a guest's card and a tap device, and holds each back for half of that time on either way. It
is a process of its own, for kernels without netem:

  delay.py SOCKET TAP SECONDS RESULT

listens for QEMU (`-netdev stream`) at SOCKET, and ends when that leaves. RESULT gets what went over the cable, and the
processor time that the cable itself took, in JSON.
"""

import collections
import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000
LONGEST = 65536
BATCH = 64
"""Frames of the tap device that are taken at a time, so that neither way waits for the other."""
HTTP = 8067
"""The port of the boot server, whose answers are timed."""


def open_tap(name):
    """The tap device of this name, not blocking."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


class Cable:
    """Both ways of a cable."""

    def __init__(self, stream, tap, delay):
        self.stream, self.tap, self.delay = stream, tap, delay
        self.up, self.down = collections.deque(), collections.deque()
        self.partial = b""
        self.frames = self.bytes = self.served = 0
        self.first = self.last = None

    def carry(self):
        """Carries frames until QEMU leaves."""
        while True:
            now = time.monotonic()
            self._deliver(now)
            due = [line[0][0] for line in (self.up, self.down) if line]
            ready, _, _ = select.select([self.stream, self.tap], [], [], max(0, min(due) - now) if due else None)
            due = time.monotonic() + self.delay
            if self.stream in ready and not self._take_up(due):
                return
            if self.tap in ready:
                self._take_down(due)

    def _deliver(self, now):
        while self.up and self.up[0][0] <= now:
            # A frame for which the device has no room is lost, as on a wire.
            with contextlib.suppress(BlockingIOError):
                os.write(self.tap, self.up.popleft()[1])
        out = []
        while self.down and self.down[0][0] <= now:
            frame = self.down.popleft()[1]
            out += (len(frame).to_bytes(4, "big"), frame)
        if out:
            with contextlib.suppress(OSError):
                self.stream.sendall(b"".join(out))

    def _take_up(self, due):
        with contextlib.suppress(OSError):
            data = self.stream.recv(4 * LONGEST)
            if not data:
                return False
            data, at = self.partial + data, 0
            while len(data) >= at + 4 and len(data) >= at + 4 + (length := int.from_bytes(data[at:at + 4], "big")):
                self.up.append((due, data[at + 4:at + 4 + length]))
                self.frames, self.bytes, at = self.frames + 1, self.bytes + length, at + 4 + length
            self.partial = data[at:]
            return True
        return False

    def _take_down(self, due):
        with contextlib.suppress(BlockingIOError):
            for _ in range(BATCH):
                frame = os.read(self.tap, LONGEST)
                self.down.append((due, frame))
                self.frames, self.bytes = self.frames + 1, self.bytes + len(frame)
                # TCP over IPv4 without options, from the boot server, with data.
                if frame[12:14] == b"\x08\0" and frame[23] == 6 and frame[34:36] == HTTP.to_bytes(2, "big"):
                    data = int.from_bytes(frame[16:18], "big") - 20 - (frame[46] >> 4) * 4
                    self.served += data
                    self.last = time.monotonic() if data else self.last
                    self.first = self.first or self.last


def main():
    """The command line."""
    path, tap, seconds, result = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        device = open_tap(tap)
        stream, _ = listener.accept()
    cable = Cable(stream, device, float(seconds) / 2)
    cable.carry()
    with open(result, "w", encoding="utf-8") as f:
        json.dump({"frames": cable.frames, "bytes": cable.bytes, "cable_cpu_seconds": round(time.process_time(), 2),
                   "http_bytes": cable.served, "http_seconds": round((cable.last or 0) - (cable.first or 0), 2)}, f)


if __name__ == "__main__":
    main()
