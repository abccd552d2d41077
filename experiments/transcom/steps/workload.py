"""Figure 4, what clients ask for, and figure 8, how far apart the uses of a block are."""

from . import common, plot, traces
from .common import KIB, percent, size, table

#: at the client, and behind a client's cache of so much
CACHES = (None, "1M", "16M")


def figure4(sojourn, say):
    """Request sizes, mix, order and sharing of every load."""
    found = {}
    for name, _, trace in traces.at_hand(sojourn, traces.SHARING, say):
        stats = sojourn("trace", "stats", trace)
        found[name] = workload(stats)
    rows = [(name, f["requests"], percent(f["up_to_4k"], 0), percent(f["of_4k"], 0), f"{f['mean'] / KIB:.1f} KiB",
             f"{f['read_mean'] / KIB:.1f} KiB", percent(f["reads"], 0), percent(f["read_bytes"], 0),
             percent(f["sequential"], 0), size(round(f["working_set"] / common.MIB) * common.MIB),
             percent(f["only_read"], 0), "-" if f["shared"] is None else percent(f["shared"], 0))
            for name, f in found.items()]
    page = ("# Figure 4: what clients ask for\n\nReads and writes together; sizes by request.\n\n"
            + table(("load", "requests", "up to 4 KiB", "exactly 4 KiB", "mean", "mean read", "reads", "bytes read",
                     "in sequence", "working set", "of it only read", "uses of blocks of several clients"), rows))
    series = [(name, cumulative(f["sizes"])) for name, f in found.items()]
    powers = [1 << n for n in range(9, 21)]
    drawn = plot.lines("Requests that are not longer", "bytes", "% of requests", series, log=True, top=100,
                       names=[(p, size(p).replace(" ", "").replace("iB", "")) for p in powers])
    common.keep("figure4", found, page, [("figure4", drawn)])


def workload(stats):
    """The part of `trace stats` that the paper speaks of."""
    reads, writes = stats["read_sizes"], stats["write_sizes"]
    count = reads["requests"] + writes["requests"]
    moved = dict((op, of["bytes"]) for op, of in stats["operations"])
    blocks, order = stats["working_set"], stats["order"]
    sizes = {}
    for power, n in reads["by_power"] + writes["by_power"]:
        sizes[power] = sizes.get(power, 0) + n / count
    uses = stats["sharing"]["by_clients"]
    return {"requests": count, "up_to_4k": (reads["up_to_4096"] + writes["up_to_4096"]) / count,
            "of_4k": (reads["of_4096"] + writes["of_4096"]) / count,
            "mean": (moved["read"] + moved["write"]) / count, "read_mean": reads["mean"],
            "reads": reads["requests"] / count, "read_bytes": moved["read"] / (moved["read"] + moved["write"]),
            "sequential": order["sequential"] / (order["sequential"] + order["near"] + order["random"]),
            "working_set": blocks["blocks"] * blocks["block"], "only_read": blocks["only_read"] / blocks["blocks"],
            "shared": sum(n for clients, _, n in uses if clients > 1) / sum(n for *_, n in uses)
            if len(stats["clients"]) > 1 else None,
            "sizes": sorted(sizes.items())}


def cumulative(sizes):
    """Percent of the requests that are not longer than each power of two."""
    known, sofar, points = dict(sizes), 0.0, []
    for power in (1 << n for n in range(9, 21)):
        sofar = sum(part for length, part in known.items() if length <= power)
        points.append((power, sofar * 100))
    return points


def figure8(sojourn, say):
    """How many references lie between two of one block, at the clients and at the server."""
    found, drawn = {}, []
    for name, sharing, trace in traces.at_hand(sojourn, ("desktops", "desktop-session", "five-guests", "demo"), say):
        found[name] = {}
        for cache in CACHES:
            client = ["--client", cache] if cache else []
            view = sojourn("simulate", "cache", trace, "--share", sharing, *client, "--policy", "lru", "--size", "64M",
                           "--split", "32768")
            found[name][cache or "at the client"] = distances(view)
        series = [(f"{'behind ' if label[0].isdigit() else ''}{label}", running(f)) for label, f in found[name].items()]
        drawn.append((f"figure8-{name}", plot.lines(
            f"{name}: references by distance to the block's last use", "references since then, up to",
            "% of references", series, log=True, top=100,
            names=[(1 << n, f"2^{n}") for n in range(0, 24, 2)])))
    rows = [(name, label, f["references"], percent(f["first"]), percent(below(f, 256)), percent(below(f, 4096)),
             percent(below(f, 32768)), percent(f["again"] - below(f, 32768)))
            for name, by in found.items() for label, f in by.items()]
    page = ("# Figure 8: temporal distance\n\nReferences of reads to blocks of 4 KiB, by the number of references "
            "since the block's last one:\nas all clients ask, and as they reach the server behind an LRU cache of "
            "each client.\n\n"
            + table(("load", "client's cache", "references", "first of a block", "again, under 256", "under 4,096",
                     "under 32,768", "later"), rows))
    common.keep("figure8", found, page, drawn)


def distances(view):
    """Shares of references by the power of two of their distance."""
    row, all_of_them = view["rows"][0], view["references"]
    pairs = zip(row["hits_by_distance"], row["misses_by_distance"], strict=True)
    by = [(hits + misses) / all_of_them for hits, misses in pairs]
    return {"references": all_of_them, "first": row["cold"] / all_of_them, "again": sum(by), "by_power": by}


def below(found, distance):
    """The share of references whose distance is below a power of two."""
    return sum(found["by_power"][:distance.bit_length() - 1])


def running(found):
    """Percent of references with less than each distance."""
    return [(1 << n, below(found, 1 << n) * 100) for n in range(23)]
