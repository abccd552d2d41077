"""How much of a disk can be lent, by its fragmentation and the smallest extent that is taken."""

import os

from .common import Borrow, fio, owner, rows, timed

SIZE = 8 << 30
ROUNDS = (0, 1, 3, 8)
FLOORS = ("64K", "256K", "1M", "4M", "16M", "64M")
TURNS = 3
SPEED = (("64K", "3600M"), ("4M", "1500M"))
"""Floors, and what is borrowed with them: nearly all that there is."""


def measure(sojourn, place, say):
    """Shares of free space and extents for every disk and floor; speed of disks of many and few extents."""
    borrow = Borrow(sojourn, os.path.join(place, "home"))
    found, speed = [], []
    for number in ROUNDS:
        say(f"ageing a disk {number} times")
        disk = owner(os.path.join(place, f"aged-{number}"), SIZE, number)
        for floor in FLOORS:
            seconds, report = timed(lambda f=floor, d=disk: borrow.ask("scan", d, "--min-extent", f))
            part = report["disks"][0]["parts"][0]
            found.append({"rounds": number, "floor": floor, "free": part["free_bytes"], "lent": part["lendable_bytes"],
                          "extents": part["extents"], "seconds": round(seconds, 3)})
        if number == ROUNDS[-1]:
            for floor, size in SPEED:
                say(f"speed with extents of {floor} and more")
                with borrow.up(disk, "--size", size, "--min-extent", floor) as (_, view):
                    speed.append({"floor": floor, "extents": view["lent"][0]["extents"], **rates(view["address"])})
                    borrow.ask("down")
        os.unlink(disk)
    return {"size": SIZE, "found": found, "speed": speed}


def rates(uri):
    """MB/s in order, and operations in a second at random; the best of some turns."""
    def best(side, figure, *words):
        return round(max(fio(uri, *words, "--size=1400M")[side][figure] for _ in range(TURNS)))

    brief = ("--runtime=2", "--time_based")
    return {"write": best("write", "bw", "--rw=write", "--bs=1M", "--iodepth=4") // 1000,
            "read": best("read", "bw", "--rw=read", "--bs=128k", "--iodepth=4", *brief) // 1000,
            "random_read": best("read", "iops", "--rw=randread", "--bs=4k", "--iodepth=8", *brief),
            "random_write": best("write", "iops", "--rw=randwrite", "--bs=4k", "--iodepth=8", *brief)}


def table(result):
    """For the page."""
    head = ["times emptied by half", "free", *(f">= {floor}" for floor in FLOORS)]
    body = []
    for number in ROUNDS:
        mine = [row for row in result["found"] if row["rounds"] == number]
        cells = [f"{100 * row['lent'] / row['free']:.0f} % in {row['extents']}" for row in mine]
        body.append([number, f"{mine[0]['free'] / (1 << 30):.2f} GiB", *cells])
    text = rows(head, body) + "\n"
    head = ["extents of", "extents", "write 1 MiB", "read 128 KiB", "read 4 KiB", "write 4 KiB"]
    body = [[f">= {row['floor']}", row["extents"], f"{row['write']} MB/s", f"{row['read']} MB/s",
             f"{row['random_read']}/s", f"{row['random_write']}/s"] for row in result["speed"]]
    return text + rows(head, body)
