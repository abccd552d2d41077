"""The demonstration: one golden image, three private disks, three real guests."""

import concurrent.futures
import json
import os
import shutil
import time

from . import TOP, WORK, LabError
from .golden import build
from .guest import Guest
from .server import Server
from .shell import locked, run

# name, mode of the disk, what boots.  Under emulation systemd takes several times as long
# as a shell does, and the demonstration is about disks: one full system will do.
GUESTS = [("alice", "persistent", "full"), ("bob", "persistent", "bare"), ("carol", "ephemeral", "bare")]
MIB = 1 << 20


def demo():
    """Runs all of it, one demonstration at a time; LabError when anything is not as promised."""
    golden = build.golden(say)
    facts = build.manifest(golden)
    say(f"golden image: Debian 12, kernel {facts['kernel']}, {facts['virtual_bytes'] // MIB} MiB, "
        f"{facts['allocated_bytes'] // MIB} of them in use")
    place = os.path.join(WORK, "demo")
    with locked(place + ".lock"):
        show(golden, facts, place)


def show(golden, facts, place):
    """The demonstration itself, in the directory `place`."""
    began = time.monotonic()
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    with Server(os.path.join(TOP, "target/demo/sojourn"), os.path.join(place, "home")) as server:
        prepare(server, golden)
        server.start()
        say(f"serving on unix:{server.socket}")
        first = boot_all(server, golden, write_marker)
        for name, seen in ((n, r["seen"]) for n, r in first.items()):
            if seen != [name]:
                raise LabError(f"{name} sees the markers of {seen or 'nobody'}, not just its own")
        say("each guest sees its own marker and no other; all powered off")
        second = boot_all(server, golden, read_markers)
        for name, mode, _ in GUESTS:
            expected = [name] if mode == "persistent" else []
            if second[name]["seen"] != expected:
                raise LabError(f"after its reboot {name} ({mode}) sees {second[name]['seen']}, not {expected}")
        say("booted again: the persistent disks kept their markers, the ephemeral one dropped its own")
        # What the guests did, before the checks below read every disk from end to end.
        status = server.command("status")
        for name, _, _ in GUESTS:
            check_file_system(server, name, facts["root_offset"], place)
        say("e2fsck finds nothing wrong on any of the three disks")
        report(status, server.command("disk", "list"), first, second)
        server.stop()
    say(f"server stopped clean; {time.monotonic() - began:.0f} s in all")


def say(text):
    """One line of progress."""
    print(f"demo: {text}", flush=True)


def prepare(server, golden):
    """A home, the image, the disks."""
    server.command("init")
    began = time.monotonic()
    imported = server.command("image", "import", os.path.join(golden, "golden.raw"), "debian")
    say(f"imported as {imported.get('image', 'debian')} in {time.monotonic() - began:.1f} s")
    for name, mode, _ in GUESTS:
        server.command("disk", "create", name, "--from", "debian", *(["--ephemeral"] if mode == "ephemeral" else []))
    say("disks: " + ", ".join(f"{name} ({mode})" for name, mode, _ in GUESTS))


def boot_all(server, golden, task):
    """Boots all guests at once, runs a task in each, powers them off."""

    def one(name, profile):
        full = profile == "full"
        with Guest(golden, server.uri(name), name=name, profile=profile, memory=512 if full else 256,
                   cpus=2 if full else 1) as guest:
            result = {"boot": guest.start().ready(), "accel": guest.accel}
            result["seen"] = task(guest)
            result["written"] = guest.counters()["wr_bytes"]
            guest.poweroff()
            return result

    with concurrent.futures.ThreadPoolExecutor(len(GUESTS)) as pool:
        running = {name: pool.submit(one, name, profile) for name, _, profile in GUESTS}
        return {name: future.result() for name, future in running.items()}


def write_marker(guest):
    """The guest leaves a file with its name, on disk."""
    guest.execute(f"echo {guest.name} >/root/marker-{guest.name} && sync")
    return read_markers(guest)


def read_markers(guest):
    """Whose markers the guest sees."""
    note = guest.execute("cd /root && cat marker-* 2>/dev/null | tr '\\n' ' '", check=False)["note"]
    return note.split()


def check_file_system(server, name, offset, place):
    """Copies a disk out over NBD and lets e2fsck look at its root."""
    raw = os.path.join(place, name + ".raw")
    run(["qemu-img", "convert", "-f", "raw", "-O", "raw", server.uri(name), raw])
    run(["e2fsck", "-fn", f"{raw}?offset={offset}"], env=dict(os.environ, PATH="/usr/sbin:/sbin:" + os.environ["PATH"]))
    os.unlink(raw)


def report(status, disks, first, second):
    """The table."""
    private = {d["name"]: d["private_bytes"] for d in disks}
    rows = [("guest", "disk", "boots", "boot s", "again s", "MiB written", "MiB private")]
    for name, mode, profile in GUESTS:
        written = first[name]["written"] + second[name]["written"]
        rows.append((name, mode, profile, f"{first[name]['boot']:.1f}", f"{second[name]['boot']:.1f}",
                     f"{written / MIB:.1f}", f"{private[name] / MIB:.1f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print()
    for row in rows:
        cells = [c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        print("  " + "  ".join(cells).rstrip())
    store, cache, total = status["store"], status["cache"], status["total"]
    print(f"\n  read from the store: {store['read_bytes'] / MIB:.1f} MiB, unpacked {store['plain_bytes'] / MIB:.1f} MiB"
          f"\n  served to clients:   {total['read_bytes'] / MIB:.1f} MiB"
          f"\n  cache hits:          {cache['hit_percent'] or 0:.1f} %"
          f"\n  guests run under:    {first[GUESTS[0][0]]['accel']}\n", flush=True)
    with open(os.path.join(WORK, "demo", "result.json"), "w", encoding="utf-8") as f:
        json.dump({"first": first, "second": second, "status": status, "disks": disks}, f, indent=1)
