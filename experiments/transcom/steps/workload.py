"""Section 3.2, what clients ask for, and section 6.1's temporal distance: how far apart the uses of a block are."""

from . import common, plot, traces
from .common import KIB, gathered, named, percent, size, table

#: at the client, and behind a client's cache of so much
CACHES = (None, "1M", "16M")
DISTANCES = ("desktops", "desktop-session", "five-guests", "demo")
POWERS = [1 << n for n in range(9, 21)]
#: what section 3.2 says of sizes, as points of the distribution: bytes, percent of requests
PAPER_SIZES = ((4 * KIB, 70), (64 * KIB, 100))


def workload(sojourn, say):
    """Request sizes, mix, order and sharing of every load, beside section 3.2."""
    found = {}
    for name, _, trace in traces.at_hand(sojourn, traces.SHARING, say):
        found[name] = of_requests(sojourn("trace", "stats", trace))
    known = gathered("workload", traces.SHARING, found)
    paper = ("the paper", "", "0.5 KiB", "64 KiB", "8 KiB", "70 %", "60 %", "1 : 3", "4 : 5", "50 %")
    rows = [paper] + [(named(name, known), f"{f['requests']:,}", size(f["smallest"]), size(f["largest"]),
                       f"{f['mean'] / KIB:.1f} KiB", percent(f["up_to_4k"], 0), percent(f["of_4k"], 0),
                       ratio(f["read_bytes"], f["written_bytes"]), ratio(f["blocks_read"], f["blocks_written"]),
                       percent(f["sequential"], 0)) for name, f in known.items()]
    more = [(named(name, known), percent(f["reads"], 0), ratio(f["read_requests"], f["write_requests"]),
             f"{f['read_mean'] / KIB:.1f} KiB", size(round(f["working_set"] / common.MIB) * common.MIB),
             percent(f["only_read"], 0), "-" if f["shared"] is None else percent(f["shared"], 0))
            for name, f in known.items()]
    page = ("# Section 3.2: what clients ask for\n\nReads and writes together, sizes by request, numbers in the order "
            "of the paper's four points.\n\n"
            + table(("load", "requests", "smallest, up to", "largest", "mean", "up to 4 KiB", "exactly 4 KiB",
                     "bytes read : written", "blocks read : written", "in sequence"), rows)
            + "\n\nThe paper says \"the proportion of the traffic\" and \"of the working set (amount of blocks that be "
            "accessed at least\nonce)\": here they are bytes, and different blocks of 4 KiB that were read or written "
            "at least once. In sequence is a\nrequest that begins where its client's last one of that disk ended; the "
            "desktops' traces have no writes.\n\n"
            + table(("load", "reads of requests", "requests read : written", "mean read", "working set",
                     "of it only read", "uses of blocks of several clients"), more) + "\n" + common.note(known))
    series = [plot.line("the paper", PAPER_SIZES, dots=True)]
    series += [plot.line(name, [(int(x), y) for x, y in cumulative(f["sizes"])]) for name, f in known.items()]
    drawn = plot.lines("Requests that are not longer", "bytes", "% of requests", series, log=True, top=100,
                       names=[(p, size(p).replace(" ", "").replace("iB", "")) for p in POWERS])
    common.keep("workload", {"loads": known}, page, [("workload", drawn)])


def ratio(one, other):
    """Two amounts as the paper has them."""
    if not one or not other:
        return "-"
    return f"1 : {other / one:.2g}" if other >= one else f"{one / other:.2g} : 1"


def of_requests(stats):
    """The part of `trace stats` that the paper speaks of."""
    reads, writes = stats["read_sizes"], stats["write_sizes"]
    count = reads["requests"] + writes["requests"]
    moved = dict((op, of["bytes"]) for op, of in stats["operations"])
    blocks, order = stats["working_set"], stats["order"]
    sizes = {}
    for power, n in reads["by_power"] + writes["by_power"]:
        sizes[power] = sizes.get(power, 0) + n / count
    uses = stats["sharing"]["by_clients"]
    return {"requests": count, "smallest": min(sizes), "largest": max(reads["largest"], writes["largest"] or 0),
            "up_to_4k": (reads["up_to_4096"] + writes["up_to_4096"]) / count,
            "of_4k": (reads["of_4096"] + writes["of_4096"]) / count,
            "mean": (moved["read"] + moved["write"]) / count, "read_mean": reads["mean"],
            "reads": reads["requests"] / count, "read_requests": reads["requests"],
            "write_requests": writes["requests"], "read_bytes": moved["read"], "written_bytes": moved["write"],
            "blocks_read": blocks["only_read"] + blocks["both"],
            "blocks_written": blocks["only_written"] + blocks["both"],
            "sequential": order["sequential"] / (order["sequential"] + order["near"] + order["random"]),
            "working_set": blocks["blocks"] * blocks["block"], "only_read": blocks["only_read"] / blocks["blocks"],
            "shared": sum(n for clients, _, n in uses if clients > 1) / sum(n for *_, n in uses)
            if len(stats["clients"]) > 1 else None,
            "sizes": sorted(sizes.items())}


def cumulative(sizes):
    """Percent of the requests that are not longer than each power of two."""
    known = dict(sizes)
    return [(power, sum(part for length, part in known.items() if length <= power) * 100) for power in POWERS]


def distance(sojourn, say):
    """How many references lie between two of one block, at the clients and at the server."""
    found, drawn = {}, []
    for name, sharing, trace in traces.at_hand(sojourn, DISTANCES, say):
        found[name] = {"by_cache": {}}
        for cache in CACHES:
            client = ["--client", cache] if cache else []
            view = sojourn("simulate", "cache", trace, "--share", sharing, *client, "--policy", "lru", "--size", "64M",
                           "--split", "32768")
            found[name]["by_cache"][f"behind {cache[:-1]} MiB" if cache else "at the client"] = distances(view)
    known = gathered("distance", DISTANCES, found)
    for name, of in known.items():
        series = [plot.line(label, running(f)) for label, f in of["by_cache"].items()]
        drawn.append((f"distance-{name}", plot.lines(
            f"{name}: references by distance to the block's last use", "references since then, up to",
            "% of references", series, log=True, top=100,
            names=[(1 << n, f"2^{n}") for n in range(0, 24, 2)])))
    rows = [(named(name, known), label, f"{f['references']:,}", percent(f["first"]), percent(below(f, 256)),
             percent(below(f, 4096)), percent(below(f, 32768)), percent(f["again"] - below(f, 32768)))
            for name, of in known.items() for label, f in of["by_cache"].items()]
    page = ("# Temporal distance\n\nWhat sections 5.2 and 6.1 say without a figure: what clients ask for lacks temporal "
            "locality, and the server sees\nlong distances. References of reads to blocks of 4 KiB, by the number of "
            "references since the block's last one:\nas all clients ask, and as they reach the server behind an LRU "
            "cache of each client.\n\n"
            + table(("load", "where", "references", "first of a block", "again, under 256", "under 4,096",
                     "under 32,768", "later"), rows) + "\n" + common.note(known))
    common.keep("distance", {"loads": known}, page, drawn)


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
