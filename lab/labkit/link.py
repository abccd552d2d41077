"""A TCP link between a guest and a server that can be cut and can stall."""

import contextlib
import socket
import threading

CHUNK = 256 << 10


class Link:
    """Listens on a port of its own and carries bytes to another.  Use it as a context manager."""

    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.flowing = threading.Event()
        self.flowing.set()
        self.lock, self.pairs, self.made = threading.Lock(), [], 0

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.flowing.set()
        self.cut()

    def cut(self):
        """Ends every connection; new ones are taken."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for part in (part for pair in pairs for part in pair):
            with contextlib.suppress(OSError):
                part.shutdown(socket.SHUT_RDWR)
            part.close()

    def stall(self):
        """Delivers nothing until `go`; connections stay open."""
        self.flowing.clear()

    def go(self):
        """Delivers again."""
        self.flowing.set()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            with self.lock:
                self.pairs.append((near, far))
                self.made += 1
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self.flowing.wait()
                sink.sendall(data)
        for part in (source, sink):
            with contextlib.suppress(OSError):
                part.shutdown(socket.SHUT_RDWR)
