"""IOEmu, the paper's emulator of clients: a thread for each, which asks an NBD export what a guest asked, thinks as
long as the guest did, and waits for every answer.

`sojourn replay` asks at the trace's times. Here a request comes so long after the last answer as in the recording: a
guest that had to wait does not catch up, and a boot takes its thinking and its waiting.
"""

import os
import socket
import struct
import threading
import time

READ, WRITE, FLUSH = 0, 1, 3
NOISE = os.urandom(4 << 20)


class Client:
    """A connection to an export."""

    def __init__(self, path, export):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(600)
        self.socket.connect(path)
        self.buffer = bytearray(4 << 20)
        magic, version, _ = struct.unpack(">8s8sH", self.take(18))
        if (magic, version) != (b"NBDMAGIC", b"IHAVEOPT"):
            raise OSError("not an NBD server")
        name = export.encode()
        asked = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self.socket.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 7, len(asked)) + asked)
        kind = 0
        while kind != 1:
            _, _, kind, length = struct.unpack(">QIII", self.take(20))
            said = bytes(self.take(length))
            if kind >> 31:
                raise OSError(f"export {export}: {said.decode(errors='replace')}")

    def take(self, length):
        """Exactly so many bytes, valid until the next call."""
        view = memoryview(self.buffer)[:length]
        done = 0
        while done < length:
            count = self.socket.recv_into(view[done:])
            if not count:
                raise OSError("the server closed the connection")
            done += count
        return view

    def ask(self, op, offset, length):
        """One request and its answer."""
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, op, 1, offset, length))
        if op == WRITE:
            at = offset % (len(NOISE) - length)
            self.socket.sendall(memoryview(NOISE)[at:at + length])
        _, error, _ = struct.unpack(">IIQ", self.take(16))
        if error:
            raise OSError(f"{error} for {op} at {offset}")
        if op == READ:
            self.take(length)

    def close(self):
        """Says good-bye."""
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 2, 1, 0, 0))
        self.socket.close()


def boot(exports, guests, think):
    """Clients of these (socket, export) boot at once, each as one of `guests` did: lists of (seconds of thinking, op,
    offset, length). Thinking takes `think` times as long. For each client seconds in all, and of waiting."""
    results, errors = [None] * len(exports), []
    start = threading.Barrier(len(exports))

    def run(number, place):
        try:
            start.wait()
            began, waited = time.monotonic(), 0.0
            client = Client(*place)
            for pause, *request in guests[number % len(guests)]:
                time.sleep(pause * think)
                asked = time.monotonic()
                client.ask(*request)
                waited += time.monotonic() - asked
            results[number] = (time.monotonic() - began, waited)
            client.close()
        except (OSError, threading.BrokenBarrierError) as e:
            errors.append(f"client {number + 1}: {e}")

    threads = [threading.Thread(target=run, args=one, daemon=True) for one in enumerate(exports)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise OSError("; ".join(errors[:3]))
    return results
