"""Clients of a disk by NBD and by iSCSI that stay through the loss of their server, in as few lines as that takes.

They do what an initial RAM disk's helper and open-iscsi do: when a connection is lost they look for the disk at each
address that they know, again and again, and send what was not answered once more.
"""

import contextlib
import socket
import struct
import time

from . import LabError

PATIENCE = 120
"""Seconds in which a lost disk has to be found again."""
PAUSE = 0.3
"""Seconds between two attempts."""
ANSWER = 60
"""Seconds in which a connection has to answer."""


class Lost(Exception):
    """The connection or its server is gone, or does not have the disk now: look for it again."""


def received(stream, length):
    """So many bytes of a stream."""
    data = bytearray()
    while len(data) < length:
        part = stream.recv(length - len(data))
        if not part:
            raise Lost("the connection was closed")
        data += part
    return bytes(data)


class NbdConnection:
    """An export, in transmission phase."""

    SHUTDOWN = 108
    READ, WRITE, FLUSH = 0, 1, 3

    def __init__(self, address, export, source):
        self.stream = socket.create_connection(address, ANSWER, (source, 0))
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if received(self.stream, 18)[:16] != b"NBDMAGICIHAVEOPT":
            raise LabError("this is no NBD server")
        name = export.encode()
        # Fixed newstyle without zeroes, and NBD_OPT_GO without wishes.
        go = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self.stream.sendall(struct.pack(">IQII", 3, 0x49484156454F5054, 7, len(go)) + go)
        while True:
            _, _, kind, length = struct.unpack(">QIII", received(self.stream, 20))
            body = received(self.stream, length)
            if kind >> 31:
                raise Lost(f"the export is refused: {body.decode(errors='replace')}")
            if kind == 1:
                return

    def _request(self, kind, offset, length, data=b"", expected=0):
        self.stream.sendall(struct.pack(">IHHQQI", 0x25609513, 0, kind, 1, offset, length) + data)
        _, error, _ = struct.unpack(">IIQ", received(self.stream, 16))
        if error == self.SHUTDOWN:
            raise Lost("the server stops")
        if error:
            raise LabError(f"NBD error {error}")
        return received(self.stream, expected)

    def read(self, offset, length):
        """Bytes of the disk."""
        return self._request(self.READ, offset, length, expected=length)

    def write(self, offset, data):
        """Puts bytes on the disk, for good."""
        self._request(self.WRITE, offset, len(data), data)
        self._request(self.FLUSH, 0, 0)

    def close(self):
        """Leaves."""
        with contextlib.suppress(OSError):
            self.stream.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 2, 1, 0, 0))
        self.stream.close()


class IscsiConnection:
    """A session of one connection with LUN 0, logged in."""

    BLOCK, DATA_IN = 512, 0x25
    MOST = 256 << 10

    def __init__(self, address, target, source):
        self.stream = socket.create_connection(address, ANSWER, (source, 0))
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number, self.seen = 1, 0
        keys = (f"InitiatorName=iqn.2026-11.test:{source}", f"TargetName={target}", "SessionType=Normal",
                f"MaxRecvDataSegmentLength={self.MOST}", f"FirstBurstLength={self.MOST}")
        # From the operational stage to the full feature phase; the ISID is the same each time.
        header = struct.pack(">BBxxxxxx6sHIHxxII16x", 0x43, 0x87, b"\x80\0\0\0\0\x01", 0, 1, 0, 1, 0)
        self._send(header, "".join(key + "\0" for key in keys).encode())
        answer, _ = self._receive()
        if answer[36:38] != b"\0\0":
            raise Lost(f"the login is refused with {answer[36]:02x}{answer[37]:02x}")
        # The unit attention that a session begins with.
        self._command(bytes(6), check=False)

    def _send(self, header, data=b""):
        header = header[:4] + struct.pack(">I", len(data)) + header[8:]
        self.stream.sendall(header + data + bytes(-len(data) % 4))

    def _receive(self):
        header = received(self.stream, 48)
        length = int.from_bytes(header[5:8], "big")
        data = received(self.stream, length + -length % 4)[:length]
        # Data without a status has no number of one.
        if header[0] & 0x3F != self.DATA_IN or header[1] & 1:
            self.seen = int.from_bytes(header[24:28], "big") + 1
        return header, data

    def _command(self, cdb, data=b"", expected=0, check=True):
        flags = 0x80 | (0x20 if data else 0) | (0x40 if expected else 0)
        header = struct.pack(">BBxxxxxx8xIIII16s", 0x01, flags, self.number, len(data) or expected, self.number,
                             self.seen, cdb.ljust(16, b"\0"))
        self.number += 1
        self._send(header, data)
        found = bytearray(expected)
        while True:
            header, body = self._receive()
            kind, end = header[0] & 0x3F, header[1]
            if kind == self.DATA_IN:
                at = int.from_bytes(header[40:44], "big")
                found[at:at + len(body)] = body
                if not end & 1:
                    continue
            elif kind == 0x20:
                # A NOP that wants an answer has a tag of the target's.
                if header[20:24] != b"\xff" * 4:
                    self._send(b"\x40\x80" + bytes(6) + header[8:16] + b"\xff" * 4 + header[20:24]
                               + struct.pack(">II", self.number, self.seen) + bytes(16))
                continue
            elif kind != 0x21:
                raise Lost(f"the target sends a PDU of kind {kind:#x}")
            if check and header[3]:
                raise LabError(f"SCSI status {header[3]:#x}, sense {body[2:20].hex()}")
            return bytes(found)

    def read(self, offset, length):
        """Bytes of the disk."""
        first, last = offset // self.BLOCK, -(-(offset + length) // self.BLOCK)
        size = (last - first) * self.BLOCK
        data = self._command(struct.pack(">BxIxHx", 0x28, first, last - first), expected=size)
        return data[offset - first * self.BLOCK:][:length]

    def write(self, offset, data):
        """Puts bytes on the disk, for good."""
        self._command(struct.pack(">BxIxHx", 0x2A, offset // self.BLOCK, len(data) // self.BLOCK), data)
        self._command(struct.pack(">BxIxHx", 0x35, 0, 0))

    def close(self):
        """Leaves."""
        with contextlib.suppress(OSError, Lost):
            self._send(struct.pack(">BBxxxxxx8xIHxxII16x", 0x46, 0x80, self.number, 0, self.number, self.seen))
            self._receive()
        self.stream.close()


class KeptDisk:
    """A disk that is looked for again when its connection is lost. Use it as a context manager.

    `connect` makes a connection to one of `addresses`; LabError when the disk is not found again in time, or when
    a request fails.
    """

    def __init__(self, connect, addresses):
        self.connect, self.addresses = connect, addresses
        self.connection, self.found_again = None, 0
        self.longest = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.connection:
            self.connection.close()

    def read(self, offset, length):
        """Bytes of the disk."""
        return self._kept(lambda connection: connection.read(offset, length))

    def write(self, offset, data):
        """Puts bytes on the disk, for good."""
        self._kept(lambda connection: connection.write(offset, data))

    def _kept(self, work):
        began = time.monotonic()
        why, turn = "", 0
        while time.monotonic() < began + PATIENCE:
            try:
                if self.connection is None:
                    self.connection = self.connect(self.addresses[turn % len(self.addresses)])
                    self.found_again += 1
                done = work(self.connection)
                self.longest = max(self.longest, time.monotonic() - began)
                return done
            except (OSError, Lost) as e:
                why, turn = str(e), turn + 1
                if self.connection:
                    self.connection.stream.close()
                self.connection = None
                time.sleep(PAUSE)
        raise LabError(f"not answered for {PATIENCE} s; the last reason is: {why}")
