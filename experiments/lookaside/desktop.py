"""Operations of a desktop (Figures 8 and 12 of IRP-TR-03-10): what each of them waits for a distant disk.

The seed's benchmark scripted the programs of an office under Windows, 113 operations. Here a Debian guest with office
programs does what theirs did: it starts programs, opens, sorts, converts and searches documents. The requests of
each operation are recorded from the guest, on a disk of this machine, and replayed over each link. What a slowdown is
relative to, as in the seed's (time over the link - time here) / time here, is the time that the operation takes on
this machine, in a chroot of the same disk: in the guest, whose processor is emulated, it takes ten times as long.
"""

import hashlib
import os
import re
import subprocess
import tempfile
import time

from labkit import LabError
from labkit.golden import build, packages
from labkit.guest import Guest
from labkit.shell import wait_until
from place import HELD, LINKS, Place

PROGRAMS = (*packages.BASE, "abiword", "gnumeric", "evince", "mousepad", "galculator", "xvfb", "xdotool", "imagemagick",
            "ghostscript", "python3", "zip", "unzip", "file")
DESKTOP = packages.Recipe(f"desktop-{hashlib.sha256(' '.join(PROGRAMS).encode()).hexdigest()[:8]}", PROGRAMS,
                          documents=True)
SPEED = {"100m": 1, "10m": 1, "1m": 10, "100k": 100}
"""The links, and how many times as fast as in truth each runs here."""
REQUEST = re.compile(r" (Read|Write) id=\d+ offset=0x([0-9a-f]+) count=0x([0-9a-f]+) ")
SCREEN = "Xvfb :9 -screen 0 1024x768x24 >/dev/null 2>&1 & sleep 5"
LAUNCH = ("launch() { $1 $3 >/dev/null 2>&1 & p=$!; "
          "timeout 300 xdotool search --sync --onlyvisible --class $2 >/dev/null; "
          "r=$?; kill $p; wait $p; return $r; }; export DISPLAY=:9; cd /root; ")
"""A program is started when its window is there."""
CHROOT = """set -e
mount -o "loop,offset=$2" "$1" "$3"
mount -t proc proc "$3/proc"
for part in dev tmp run; do mount -t tmpfs tmpfs "$3/$part"; done
mkdir -m 1777 "$3/dev/shm" "$3/tmp/.X11-unix"
for name in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$3/dev/${name%:*}" c 1 "${name#*:}"; done
ln -s /proc/self/fd "$3/dev/fd"
exec chroot "$3" env -i HOME=/root LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh
"""
"""Runs its standard input in the system of a disk: its file, where the file system begins, and where to mount it."""

CUSTOM = (
    # What a user has made of a fresh system: documents of all kinds.
    "python3 -c \"import random; random.seed(1); [open(f'sheet{n}.csv','w').writelines("
    "','.join(str(random.randrange(10**6)) for _ in range(12))+chr(10) for _ in range(1500)) for n in range(6)]\"",
    "python3 -c \"import random; random.seed(2); "
    "w=[''.join(random.choices('abcdefghijklmnop',k=random.randrange(2,9))) for _ in range(3000)]; "
    "[open(f'text{n}.html','w').write('<html><body>'+''.join('<p>'+' '.join(random.choices(w,k=90))+'</p>' "
    "for _ in range(120))+'</body></html>') for n in range(6)]\"",
    "for n in 0 1 2 3; do convert -size 900x700 -seed $n plasma:fractal pic$n.png; done",
    "mkdir mine && cp -r /usr/share/doc/[a-c]* /usr/share/doc/gnumeric* mine/",
    "ssconvert sheet0.csv book0.gnumeric && ssconvert sheet1.csv book1.gnumeric",
    "abiword --to=pdf --to-name=text0.pdf text0.html",
)

OPERATIONS = (
    ("launch the spreadsheet", "launch gnumeric Gnumeric"),
    ("open a sheet", "launch gnumeric Gnumeric book0.gnumeric"),
    ("import a table", "ssconvert sheet2.csv /tmp/two.gnumeric"),
    ("sort a table", "sort -t, -k3 -n sheet3.csv -o /tmp/three.csv && ssconvert /tmp/three.csv /tmp/three.gnumeric"),
    ("recalculate a sheet", "ssconvert --recalc book1.gnumeric /tmp/one.csv"),
    ("export a sheet to a spreadsheet of another kind", "ssconvert book0.gnumeric /tmp/zero.xlsx"),
    ("print a sheet", "ssconvert book1.gnumeric /tmp/one.pdf"),
    ("launch the word processor", "launch abiword Abiword"),
    ("open a text", "launch abiword Abiword text1.html"),
    ("convert a text", "abiword --to=rtf --to-name=/tmp/two.rtf text2.html"),
    ("find and replace in a text",
     "sed s/ab/ba/g text3.html >/tmp/three.html && abiword --to=txt --to-name=/tmp/3.txt /tmp/three.html"),
    ("print a text", "abiword --to=pdf --to-name=/tmp/four.pdf text4.html"),
    ("launch the viewer", "launch evince Evince text0.pdf"),
    ("show a page", "gs -q -dNOPAUSE -dBATCH -sDEVICE=png16m -r60 -dLastPage=2 -sOutputFile=/tmp/page%d.png text0.pdf"),
    ("launch the editor", "launch mousepad Mousepad text5.html"),
    ("launch the calculator", "launch galculator Galculator"),
    ("turn a picture", "convert pic0.png -rotate 90 /tmp/pic0.png"),
    ("shrink a picture", "convert pic1.png -resize 30% /tmp/pic1.jpg"),
    ("compare two pictures", "compare -metric RMSE pic2.png pic3.png null: ; true"),
    ("what kinds of files", "file * mine/*/*"),
    ("search one's documents", "grep -rl copyright mine | wc -l"),
    ("search the system's documents", "grep -l the /usr/share/doc/[d-k]*/copyright | wc -l"),
    ("count words", "cat text*.html | wc"),
    ("archive one's documents", "zip -qr /tmp/mine.zip mine"),
    ("unpack an archive", "rm -rf /tmp/out; unzip -q /tmp/mine.zip -d /tmp/out"),
    ("a program of one's own", "python3 -c 'import json,sqlite3,xml.dom.minidom,email,http.client,decimal'"),
    ("copy a folder", "cp -r mine /tmp/copy"),
    ("list all files", "find /usr/share -name '*.png' | wc -l"),
)


class Desktop:
    """A customised desktop's disk, and the requests of each operation on it."""

    def __init__(self, work, say):
        self.fresh = build.golden(say, DESKTOP)
        self.raw = os.path.join(work, "desktop.raw")
        self.work, self.say = work, say
        subprocess.run(["cp", "--sparse=always", os.path.join(self.fresh, "golden.raw"), self.raw], check=True)
        self._customise()
        self.operations = self._record()
        for operation, seconds in zip(self.operations, self._without_a_guest(), strict=True):
            operation["seconds"] = seconds

    def _guest(self, uri):
        return Guest(self.fresh, uri, profile="full", memory=1024)

    def _customise(self):
        self.say("a user makes the desktop his own")
        with RecordedDisk(self.raw, self.work) as (uri, _), self._guest(uri) as system:
            system.start().ready(timeout=600)
            system.execute(SCREEN, timeout=300)
            for command in CUSTOM:
                system.execute(LAUNCH + command, timeout=900)
            system.execute("sync")
            system.poweroff()

    def _record(self):
        """Of each operation: its name, the seconds that it took here, and the file with its requests."""
        self.say(f"recording {2 * len(OPERATIONS)} operations")
        recorded = []
        with RecordedDisk(self.raw, self.work, "--filter=cow") as (uri, log), self._guest(uri) as system:
            system.start().ready(timeout=600)
            system.execute(SCREEN, timeout=300)
            for turn in ("", " again"):
                for name, command in OPERATIONS:
                    begin = os.path.getsize(log)
                    done = system.execute(LAUNCH + command, timeout=900)
                    time.sleep(1)  # what was written is on its way
                    recorded.append(self._trace(name + turn, done["seconds"], log, begin))
        return recorded

    def _trace(self, name, seconds, log, begin):
        with open(log, encoding="utf-8") as f:
            f.seek(begin)
            asked = [(found[1][0], int(found[2], 16), int(found[3], 16)) for found in map(REQUEST.search, f) if found]
        reads = [(offset, length) for kind, offset, length in asked if kind == "R"]
        path = os.path.join(self.work, f"operation{name.replace(' ', '-')}.csv") if reads else None
        if path:
            with open(path, "w", encoding="utf-8") as f:
                f.write("time_us,op,offset,length\n")
                f.writelines(f"{at},R,{offset},{length}\n" for at, (offset, length) in enumerate(reads))
        return {"name": name, "guest_seconds": seconds, "reads": len(reads),
                "bytes": sum(length for _, length in reads), "trace": path}


    def _without_a_guest(self):
        """The seconds that each operation takes on this machine's own processor, in the order of the recording."""
        self.say("timing them on this machine")
        copy, mount = os.path.join(self.work, "chroot.raw"), os.path.join(self.work, "chroot")
        subprocess.run(["cp", "--sparse=always", self.raw, copy], check=True)
        os.mkdir(mount)
        timed = "".join(f"b=$(date +%s%N); ( {LAUNCH}{command} ) >/dev/null 2>&1 </dev/null\n"
                        "echo $(($(date +%s%N) - b))\n" for _, command in 2 * OPERATIONS)
        # The mounts are its own, and end with it.
        line = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CHROOT, "sh", copy,
                str(packages.ROOT_OFFSET), mount]
        done = subprocess.run(line, input=f"{SCREEN}\n{timed}", capture_output=True, text=True, check=False)
        os.remove(copy)
        if done.returncode:
            raise LabError(f"the desktop's disk cannot be used on this machine (root alone can): {done.stderr[-500:]}")
        return [int(line) / 1e9 for line in done.stdout.split()]


class RecordedDisk:
    """nbdkit with a disk, and the log of what is asked of it.  Use it as a context manager."""

    def __init__(self, raw, work, *filters):
        self.folder = tempfile.mkdtemp(prefix="nbd.", dir=work)
        self.socket, self.log = os.path.join(self.folder, "sock"), os.path.join(self.folder, "log")
        self.line = ["nbdkit", "--foreground", "--exit-with-parent", "-U", self.socket, "-e", "disk", "--filter=log",
                     *filters, "file", raw, f"logfile={self.log}"]
        self.server = None

    def __enter__(self):
        self.server = subprocess.Popen(self.line, stdin=subprocess.DEVNULL)
        wait_until("nbdkit", lambda: os.path.exists(self.socket), 20)
        return f"nbd+unix:///disk?socket={self.socket}", self.log

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()


class DesktopBench(Place):
    """A server with the fresh desktop and the user's, and a medium of the fresh one."""

    def __init__(self, binary, work):
        super().__init__(binary, work)
        self.desktop, self.media = None, {}

    def prepare(self, say):
        """Makes the disk and the medium, and starts the server."""
        self.desktop = Desktop(self.work, say)
        command = self.server.command
        command("init")
        command("image", "import", os.path.join(self.desktop.fresh, "golden.raw"), "fresh")
        command("image", "import", self.desktop.raw, "desktop")
        for held, image in (("fresh", "fresh"), ("100", "desktop")):
            self.media[held] = os.path.join(self.work, f"desktop-{held}")
            os.mkdir(self.media[held])
            command("media", "write", self.media[held], image)
        self.open()

    def use(self, link, held):
        """All operations on an attached disk, one after the other; what each waited for the disk."""
        rate, round_trip, _ = LINKS[link]
        speed = 1 if HELD.get(held) == 1 else SPEED[link]
        waits = []

        def operations(uri):
            waits.extend(self.replay(operation["trace"], uri, "--reads-only") if operation["trace"] else 0.0
                         for operation in self.desktop.operations)
            return sum(waits)

        cell = self.attached("desktop", (rate, round_trip, speed), self.media.get(held), operations)
        return {"waits": [round(wait * speed, 4) for wait in waits], **cell}

    def facts(self):
        """What the operations are, and how long each took here."""
        keys = ("name", "seconds", "guest_seconds", "reads", "bytes")
        return [{key: operation[key] for key in keys} for operation in self.desktop.operations]
