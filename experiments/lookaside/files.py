"""File traces (Figures 9 and 10 of IRP-TR-03-10): a working set of files on a disk, and what using it asks of that.

The seed replayed four recorded traces of workstations, which are not public. What it published of them is in
`TRACES`; the rest is made here: sizes of files by a log-normal distribution with a median of 8 KiB, each file
opened for the first time at a random moment of the trace, the others of its operations on files that were used
lately. What a machine keeps in memory, it asks for once: so a trace is the directory, the inode and the data of
each file when it is first opened, and what is written, in the order of the operations.
"""

import os
import random
import subprocess
from dataclasses import dataclass

from labkit.shell import run as run_quietly
from place import HELD, LINKS, Place
from tables import RECORDED

SPEED = {"100m": 1, "10m": 1, "1m": 20, "100k": 200}
"""The links, and how many times as fast as in truth each runs here: the traces would take hours."""
BLOCK = 4096
LARGEST = 128 << 10
"""Bytes of a request at most, as Linux reads ahead."""
MEDIAN, SIGMA, LARGEST_FILE = 8 << 10, 1.5, 4 << 20
"""Of the sizes of files, in bytes."""
IN_DIRECTORY = 25
"""Files of a directory."""
MAPS = 1 << 20
"""Bytes of a medium for what is not chunks."""
NOT_READ = 0.1
"""Of the files of the snapshot, those that the trace only looks at, or overwrites unread."""


@dataclass(frozen=True)
class Recorded:
    """What the seed's Figure 9 says of a trace."""

    operations: int
    hours: float
    update_percent: int
    megabytes: int


TRACES = {name: Recorded(*row) for name, row in RECORDED.items()}


class Files:
    """The files of a trace, on a disk with an ext4 file system, and the requests that come of using them."""

    def __init__(self, name, work):
        self.name, self.recorded = name, TRACES[name]
        self.dice = random.Random(name)
        self.raw = os.path.join(work, f"{name}.raw")
        self.trace = os.path.join(work, f"{name}.csv")
        sizes = self._sizes()
        self.paths = [f"d{n // IN_DIRECTORY}/f{n}" for n in range(len(sizes))]
        self.bytes = sum(sizes)
        self._make(os.path.join(work, f"{name}.tree"), sizes)
        self.places = self._places()
        self.facts = self._write_trace()

    def _sizes(self):
        sizes, left = [], self.recorded.megabytes * 10**6
        while left > 0:
            size = min(int(MEDIAN * self.dice.lognormvariate(0, SIGMA)) + 1, LARGEST_FILE, left)
            sizes.append(size)
            left -= size
        return sizes

    def _content(self, size):
        """Bytes of which half do not compress."""
        text = b"a line of a text that somebody wrote and that compresses well\n" * 33
        pages = (self.dice.randbytes(BLOCK // 2) + text[:BLOCK // 2] for _ in range(-(-size // BLOCK)))
        return b"".join(pages)[:size]

    def _make(self, tree, sizes):
        for name, size in zip(self.paths, sizes, strict=True):
            path = os.path.join(tree, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(self._content(size))
        room = int(sum(-(-size // BLOCK) * BLOCK for size in sizes) * 1.1) + (64 << 20)
        with open(self.raw, "wb") as f:
            f.truncate(-(-room // (1 << 20)) << 20)
        run_quietly(["mke2fs", "-q", "-F", "-t", "ext4", "-b", str(BLOCK), "-N", str(len(sizes) * 2), "-E",
                     "lazy_itable_init=0,lazy_journal_init=0", "-d", tree, self.raw])
        run_quietly(["rm", "-rf", tree])

    def _places(self):
        """Of each file: the block of its inode, those of its directory, its own."""
        asked = "".join(f"imap {path}\nblocks {os.path.dirname(path)}\nblocks {path}\n" for path in self.paths)
        done = subprocess.run(["debugfs", "-f", "-", self.raw], input=asked, capture_output=True, text=True, check=True)
        lines = [line.strip() for line in done.stdout.splitlines() if not line.startswith("debugfs:")]
        inodes = [int(line.split("located at block ")[1].split(",")[0]) for line in lines if "located at" in line]
        blocks = [list(map(int, line.split())) for line in lines if line.replace(" ", "").isdigit()]
        if (len(inodes), len(blocks)) != (len(self.paths), 2 * len(self.paths)):
            raise ValueError(f"debugfs told of {len(inodes)} inodes of {len(self.paths)} files")
        return list(zip(inodes, blocks[::2], blocks[1::2], strict=True))

    def _write_trace(self):
        """Writes the requests; how many there are, and of how many bytes."""
        steps = ["again"] * self.recorded.operations
        for step in self.dice.sample(range(len(steps)), len(self.paths)):
            steps[step] = "first"
        order, lately, known = list(range(len(self.paths))), [], set()
        self.dice.shuffle(order)
        count = {"requests": 0, "read_bytes": 0, "written_bytes": 0}
        with open(self.trace, "w", encoding="utf-8") as f:
            f.write("time_us,op,offset,length\n")

            def ask(operation, blocks):
                for start, length in requests(blocks):
                    f.write(f"{count['requests']},{operation},{start * BLOCK},{length * BLOCK}\n")
                    count["requests"] += 1
                    count["read_bytes" if operation == "R" else "written_bytes"] += length * BLOCK

            for step in steps:
                update = self.dice.random() < self.recorded.update_percent / 100
                if step == "first":
                    file = order.pop()
                    lately.append(file)
                elif lately:
                    file = lately[-1 - min(int(self.dice.expovariate(0.02)), len(lately) - 1)]
                else:
                    continue
                inode, directory, data = self.places[file]
                unread = step == "first" and (update or self.dice.random() < NOT_READ)
                wanted = [*directory, inode, *([] if unread else data)]
                new = [block for block in wanted if block not in known]
                known.update(new)
                ask("R", new)
                if update:
                    known.update(data)
                    ask("W", data)
        return count

    def chosen(self, part):
        """The ranges of bytes of so many of the files, chosen at random; each larger choice has the smaller ones."""
        order = list(range(len(self.paths)))
        random.Random(self.name + "medium").shuffle(order)
        blocks = [block for file in order[:round(len(order) * part)]
                  for block in (self.places[file][0], *self.places[file][1], *self.places[file][2])]
        return [(start * BLOCK, length * BLOCK) for start, length in requests(sorted(set(blocks)))]


def requests(blocks):
    """Runs of blocks that follow each other, none longer than a request."""
    runs = []
    for block in blocks:
        if runs and runs[-1][0] + runs[-1][1] == block and runs[-1][1] < LARGEST // BLOCK:
            runs[-1][1] += 1
        else:
            runs.append([block, 1])
    return runs


class FileBench(Place):
    """A server with the disks of the traces, and media that have the files of a part of each."""

    def __init__(self, binary, work):
        super().__init__(binary, work)
        self.files, self.media = {}, {}

    def prepare(self, names, say):
        """Makes the files, the images and the media, and starts the server."""
        self.server.command("init")
        for name in names:
            say(f"making the files of {name}")
            self.files[name] = Files(name, self.work)
            self.server.command("image", "import", self.files[name].raw, name)
            self.media.update({(name, held): self._medium(name, held) for held in HELD})
        self.open()

    def _medium(self, name, held):
        part = HELD[held]
        if not part:
            return None
        path = os.path.join(self.work, f"{name}-{held}")
        os.mkdir(path)
        if part == 1:
            self.server.command("media", "write", path, name)
            return path
        # What a list names goes on first: the chunks in which the chosen files are. It is the list of another
        # version of the same image, which is removed, so that nothing is read ahead by it.
        ranges, version = os.path.join(self.work, "ranges"), f"{name}-{held}"
        with open(ranges, "w", encoding="utf-8") as f:
            f.writelines(f"{offset} {length}\n" for offset, length in self.files[name].chosen(part))
        command = self.server.command
        command("image", "import", self.files[name].raw, version)
        command("image", "boot-list", "record", version, ranges)
        listed = command("image", "boot-list", "show", version)
        command("media", "write", path, version, "--size", str(listed["stored_bytes"] + MAPS))
        command("image", "remove", f"{version}:1")
        return path

    def use(self, name, link, held):
        """Replays a trace on an attached disk, over a link of `LINKS`; what it took."""
        rate, round_trip, _ = LINKS[link]
        speed = 1 if HELD[held] == 1 else SPEED[link]
        files = self.files[name]
        cell = self.attached(name, (rate, round_trip, speed), self.media[name, held],
                             lambda uri: self.replay(files.trace, uri, "--allow-writes"))
        return {"files": len(files.paths), "file_bytes": files.bytes, **files.facts, **cell}
