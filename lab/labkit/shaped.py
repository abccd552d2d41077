"""A slow link in user space: a rate and a delay for each direction, shared by all connections through it.

What passes is counted. The model, for each direction: one queue that is sent at the rate, then a fixed delay;
nothing is lost. The rate is that of the bytes that the connections carry: the headers of TCP and Ethernet are
not counted, which take six percent more.
"""

import asyncio
import contextlib
import socket
import threading

LARGEST = 64 << 10
"""Bytes that are taken at once at most."""
WINDOW = 0.2
"""Seconds of the rate that may wait on the link, before the sender is held up."""


class Direction:
    """What goes one way."""

    def __init__(self, rate, delay):
        self.rate, self.delay = rate, delay
        self.free, self.bytes = 0.0, 0
        self.piece = max(1448, min(LARGEST, int(rate * 0.004)))

    async def carry(self, size):
        """Queues bytes; returns the moment at which they arrive."""
        loop = asyncio.get_running_loop()
        while (ahead := self.free - loop.time() - max(WINDOW, LARGEST / self.rate)) > 0:
            await asyncio.sleep(ahead)
        self.free = max(loop.time(), self.free) + size / self.rate
        self.bytes += size
        return self.free + self.delay


class ShapedLink:
    """Listens on a port of its own and carries bytes to another.  Use it as a context manager.

    `rate` is in bits per second, `round_trip` in seconds.  `heard` is called, on a thread of the link's own, with the
    bytes that clients send, as they send them.
    """

    def __init__(self, target, rate, round_trip=0.0, heard=None):
        self.target, self.heard = target, heard
        self.down, self.up = (Direction(rate / 8, round_trip / 2) for _ in range(2))
        self.port, self.is_cut, self.open = 0, False, set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        started = asyncio.start_server(self._client, "127.0.0.1", 0, limit=4 * LARGEST)
        server = asyncio.run_coroutine_threadsafe(started, self.loop).result()
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        def stop():
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_later(0.05, self.loop.stop)

        self.loop.call_soon_threadsafe(stop)
        self.thread.join()

    def cut(self):
        """Ends all connections, and carries none until it is mended."""
        self._on_its_thread(True)

    def mend(self):
        """Carries connections again."""
        self._on_its_thread(False)

    def _on_its_thread(self, is_cut):
        async def change():
            self.is_cut = is_cut
            for writer in self.open if is_cut else ():
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(change(), self.loop).result()

    async def _client(self, reader, writer):
        if self.is_cut:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target, limit=4 * LARGEST)
        except OSError:
            writer.close()
            return
        for end in (writer, far_writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.open |= {writer, far_writer}
        if self.is_cut:
            writer.transport.abort()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(self._pump(reader, far_writer, self.up), self._pump(far_reader, writer, self.down))
        self.open -= {writer, far_writer}
        for end in (writer, far_writer):
            end.close()

    async def _pump(self, reader, writer, way):
        queue = asyncio.Queue()
        delivery = asyncio.create_task(self._deliver(queue, writer))
        with contextlib.suppress(OSError):
            while not delivery.done():
                data = await reader.read(way.piece)
                if not data:
                    break
                if self.heard and way is self.up:
                    self.heard(data)
                queue.put_nowait((await way.carry(len(data)), data))
        queue.put_nowait((max(self.loop.time(), way.free) + way.delay, None))
        await delivery

    async def _deliver(self, queue, writer):
        with contextlib.suppress(OSError, RuntimeError):
            while True:
                at, data = await queue.get()
                await asyncio.sleep(max(0, at - self.loop.time()))
                if data is None:
                    return writer.write_eof()
                writer.write(data)
                await writer.drain()
