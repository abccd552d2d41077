"""A picture of a screen that is shown over VNC (RFC 6143), as a PNG."""

import socket
import struct
import zlib

from . import LabError

RAW = 0
UPDATE = 0
"""The message that has pixels."""
PIXELS = struct.pack(">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
"""Four bytes for each: blue, green, red and one more."""
LARGEST = 1 << 26
"""Pixels that a screen may have."""


def picture(path, timeout=60):
    """What the VNC server at a unix socket shows, as the bytes of a PNG."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(timeout)
        s.connect(path)
        with s.makefile("rb") as server:
            width, height = _greet(s, server)
            s.sendall(b"\0\0\0\0" + PIXELS + struct.pack(">BxHi", 2, 1, RAW))
            s.sendall(struct.pack(">BBHHHH", 3, 0, 0, 0, width, height))
            return _png(width, height, _pixels(server, width, height))


def _greet(client, server):
    """Goes through the handshake; the screen's width and height."""
    _read(server, 12)
    client.sendall(b"RFB 003.008\n")
    kinds = _read(server, _read(server, 1)[0])
    if b"\1" not in kinds:
        raise LabError("the screen asks for a password")
    client.sendall(b"\1")
    if _read(server, 4) != bytes(4):
        raise LabError("the screen refuses to be shown")
    client.sendall(b"\1")
    width, height = struct.unpack(">HH", _read(server, 4))
    _read(server, 16)
    _read(server, struct.unpack(">I", _read(server, 4))[0])
    if not 0 < width * height <= LARGEST:
        raise LabError(f"the screen has {width} x {height} pixels")
    return width, height


def _pixels(server, width, height):
    """The rows of a whole screen, which come in one or more rectangles."""
    rows, missing = [bytearray(4 * width) for _ in range(height)], width * height
    while missing > 0:
        if _read(server, 1)[0] != UPDATE:
            raise LabError("the screen says something that was not asked for")
        for _ in range(struct.unpack(">xH", _read(server, 3))[0]):
            x, y, across, down, encoding = struct.unpack(">HHHHi", _read(server, 12))
            if encoding != RAW or x + across > width or y + down > height:
                raise LabError("the screen changed meanwhile")
            for row in rows[y:y + down]:
                row[4 * x:4 * (x + across)] = _read(server, 4 * across)
            missing -= across * down
    return rows


def _png(width, height, rows):
    """A PNG of eight bits for each of three colours."""
    lines = bytearray()
    for row in rows:
        line = bytearray(3 * width)
        line[0::3], line[1::3], line[2::3] = row[2::4], row[1::4], row[0::4]
        lines += b"\0" + line
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(lines), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts)


def _read(server, size):
    data = server.read(size)
    if len(data) != size:
        raise LabError("the screen was closed")
    return data
