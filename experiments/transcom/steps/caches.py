"""Figures 8 and 9, the server's and the clients' caches; section 6.1's policies, and table 2."""

from . import common, plot, traces
from .common import KIB, MIB, gathered, named, percent, size, table

BLOCKS = (4, 8, 16, 32, 64, 128)
CLIENTS = (1, 4, 16)
#: the paper's four, and what came after it; opt is the bound
POLICIES = ("lru", "fbr", "twoq", "fmpq", "arc", "lirs", "s3fifo", "wtinylfu", "opt")
#: for each load: sizes of the server's cache
SIZES = {"desktops": "16M-512M", "five-guests": "4M-256M", "storm4-desktop": "4M-256M", "storm4-base": "1M-64M",
         "desktop-session": "4M-128M", "demo": "1M-64M"}
#: storms once more at the length of a usual chunk of this product's stores, which is what its cache holds
STORMS = {"storm4-desktop": "16M-256M", "storm4-base": "8M-64M", "five-guests": "16M-256M"}
STORM_POLICIES = ("lru", "twoq", "arc", "s3fifo", "fmpq", "fmpq:lifetime=1", "opt")
#: figure 8: for each load, sizes of the server's cache
SERVERS = {"desktops": "64M-1G", "five-guests": "16M-512M", "storm4-desktop": "16M-256M", "demo": "4M-64M"}
#: table 2: load, its client caches, the server's cache, the distance
SPLITS = (("desktops", "1M", "256M", 32768), ("desktops", "16M", "256M", 32768),
          ("five-guests", "1M", "64M", 8192), ("storm4-desktop", "1M", "64M", 8192),
          ("demo", "1M", "16M", 2048))
#: the paper's table 2, thousands of references: near hits, near misses, far hits, far misses
PAPER_TABLE2 = {"fmpq": (1483, 338, 1834, 2573), "twoq": (1763, 0, 1138, 3256), "fbr": (1492, 321, 1046, 3312),
                "lru": (1793, 0, 394, 3892)}
#: what the paper saves with 8 KiB in the client's cache, at so many hits of the server's and 50 clients
PAPER_SAVING, SERVER_HITS = 0.27, 0.95
#: how hits are counted: the paper's way, by accesses to blocks (section 5.1), and by what was asked for
COUNTS = {"per_block": ("of accesses to blocks", ()), "per_4k": ("of every 4 KiB asked for", ("--per", "4K"))}
EACH = {"per_block": "access to a block", "per_4k": "4 KiB asked for"}
SUFFIXES = {"per_block": "", "per_4k": "-4k"}
COUNTED = ("The paper divides what is read\nor written into accesses to blocks and counts the hits of these (5.1): "
           "a request of 16 KiB is four accesses to blocks of\n4 KiB and one to a block of 16. That is the first table "
           "of each load. The second counts every 4 KiB asked for, whatever\nthe block, so that one miss of a block of "
           "16 KiB is one miss and three hits: sizes of blocks are compared by the\nsame reads there, but the ratios "
           "are not the paper's.")


def figure8(sojourn, say):
    """The hit ratio of the server's cache by its size and the size of blocks."""
    found = {}
    for name, sharing, trace in traces.at_hand(sojourn, SERVERS, say):
        found[name] = {count: {} for count in COUNTS}
        for count, (_, options) in COUNTS.items():
            for block in BLOCKS[:5]:
                view = sojourn("simulate", "curve", trace, "--share", sharing, "--block", f"{block}K", *options,
                               "--size", SERVERS[name])
                found[name][count][str(block)] = [(p["bytes"], p["hit_ratio"]) for p in view["points"]]
    known = gathered("figure8", SERVERS, found)
    page = ("# Figure 8: the server's cache\n\nHit ratio of reads in one LRU cache for all clients, by its size and "
            "the size of blocks. The paper says that\nover 90 % are possible with more than 256 MiB. " + COUNTED + "\n")
    drawn = []
    for name, of in known.items():
        sizes = [bytes_ for bytes_, _ in of["per_block"]["4"]]
        for count, (what, _) in COUNTS.items():
            by = of[count]
            rows = [(size(bytes_), *(percent(by[block][at][1]) for block in by)) for at, bytes_ in enumerate(sizes)]
            page += f"\n{named(name, known)}, {what}:\n\n" + table(("cache", *(f"{b} KiB" for b in by)), rows) + "\n"
            series = [plot.line(f"{block} KiB", [(bytes_ / MIB, hit * 100) for bytes_, hit in points])
                      for block, points in by.items()]
            if 256 * MIB in sizes:
                series.append(plot.line("the paper: 90 % above 256 MiB", [(256, 90)], dots=True))
            drawn.append((f"figure8-{name}{SUFFIXES[count]}", plot.lines(
                f"{name}: hits in the server's cache, {what}", "cache, MiB", f"% {what}", series, log=True, top=100)))
    common.keep("figure8", {"loads": known}, page + common.note(known), drawn)


def figure9(sojourn, say):
    """The hit ratio of the clients' caches by block and size, and what that is worth to 50 of them."""
    found = {}
    for name, trace in alone(sojourn, say):
        found[name] = {count: {} for count in COUNTS}
        for count, (_, options) in COUNTS.items():
            for block in BLOCKS:
                for cache in CLIENTS:
                    view = sojourn("simulate", "cache", trace, "--share", "private", "--block", f"{block}K", *options,
                                   "--client", f"{cache}M", "--policy", "lru", "--size", "16M")
                    found[name][count][f"{cache} MiB, {block} KiB"] = view["client_hit_ratio"]
    known = gathered("figure9", (*(name for name, _ in traces.DESKTOPS), "five-guests", "desktop-session",
                                 "storm4-desktop", "demo"), found)
    page = ("# Figure 9: the cache of a client\n\nHit ratio of reads in each client's own LRU cache. " + COUNTED + "\n")
    drawn = []
    for name, of in known.items():
        series = []
        for count, (what, _) in COUNTS.items():
            by = of[count]
            rows = [(f"{cache} MiB", *(percent(by[f"{cache} MiB, {block} KiB"]) for block in BLOCKS))
                    for cache in CLIENTS]
            page += (f"\n{named(name, known)}, {what}:\n\n" + table(("cache", *(f"{b} KiB" for b in BLOCKS)), rows)
                     + "\n")
            series += [plot.line(f"{cache} MiB, {what}", [(block, by[f"{cache} MiB, {block} KiB"] * 100)
                                                          for block in BLOCKS]) for cache in CLIENTS]
        drawn.append((f"figure9-{name}", plot.lines(f"{name}: hits in the client's cache", "block, KiB",
                                                    "% of what is counted", series, log=True, top=100)))
    costs = {count: cost(sojourn, known, count) for count in COUNTS}
    page += ("\n## What a block size costs\n\n50 clients with 1 MiB each, and a server whose cache hits "
             f"{percent(SERVER_HITS, 0)}: misses of the client's cache times the response\nof the paper's server "
             "(`model solve transcom`) for such a block, in milliseconds: "
             + ", ".join(f"{ms:.2f}" for ms in costs["per_block"]["response"])
             + "\nfor 4 to 64 KiB. In brackets what such a cache saves of the response of clients without one, who ask "
             f"for 4 KiB each time. The paper's best\nis 8 KiB, and saves {percent(PAPER_SAVING, 0)}.\n")
    for count, (what, _) in COUNTS.items():
        response, by = costs[count]["response"], costs[count]["cost"]
        rows = [(named(name, known), *(f"{ms:.2f} ({percent(1 - ms / response[0], 0)})" for ms in of))
                for name, of in by.items()]
        page += (f"\nMilliseconds for each {EACH[count]}:\n\n"
                 + table(("load", *(f"{block} KiB" for block in BLOCKS[:5])), rows) + "\n")
        series = [plot.line(name, [(block, (1 - ms / response[0]) * 100)
                                   for block, ms in zip(BLOCKS, of, strict=False)]) for name, of in by.items()]
        if count == "per_block":
            series.append(plot.line("the paper", [(8, PAPER_SAVING * 100)], dots=True))
        drawn.append((f"figure9-saved{SUFFIXES[count]}", plot.lines(
            f"Saved by 1 MiB at each of 50 clients: {what}",
            "block, KiB", "% of the response", series, log=True)))
    common.keep("figure9", {"loads": known, "cost": costs}, page + common.note(known), drawn)


def alone(sojourn, say):
    """Loads for figure 9: the workstations one by one, and the guests."""
    for name, shift in traces.DESKTOPS:
        try:
            yield name, traces.desktop(sojourn, name, shift)
        except common.Missing as e:
            say(f"without {name}: {e}")
    for name, _, trace in traces.at_hand(sojourn, ("five-guests", "desktop-session", "storm4-desktop", "demo"), say):
        yield name, trace


def cost(sojourn, known, count):
    """Mean milliseconds of what is counted, by the block of the client's cache of 1 MiB."""
    view = sojourn("model", "solve", "transcom", "--clients", "50", "--hit", SERVER_HITS, "--block",
                   ",".join(f"{block}K" for block in BLOCKS[:5]))
    response = [case["rows"][0]["response_ms"] for case in view["cases"]]
    return {"response": response,
            "cost": {name: [(1 - of[count][f"1 MiB, {block} KiB"]) * ms
                            for block, ms in zip(BLOCKS, response, strict=False)] for name, of in known.items()}}


def policies(sojourn, say):
    """The hit ratio of the server's cache by policy and size: what section 6.1 says without a figure."""
    found = {}
    for name, sharing, trace in traces.at_hand(sojourn, SIZES, say):
        view = sojourn("simulate", "cache", trace, "--share", sharing, "--client", "1M", "--size", SIZES[name],
                       *chosen(POLICIES))
        found[name] = {"references": view["references"], "distinct_bytes": view["distinct_blocks"] * view["block"],
                       "hit_ratio": by_policy(view)}
        if name in STORMS:
            view = sojourn("simulate", "cache", trace, "--share", sharing, "--block", "64K", "--size", STORMS[name],
                           *chosen(STORM_POLICIES))
            found[name]["hit_ratio_64k"] = by_policy(view)
            found[name]["sharing"] = {
                what: [(p["bytes"], p["hit_ratio"]) for p in sojourn("simulate", "curve", trace, *options, "--size",
                                                                    "4M-256M")["points"]]
                for what, options in (("shared until written", ["--share", "image"]),
                                      ("all private", ["--share", "private"]),
                                      ("shared, writes cached too", ["--share", "image", "--writes"]))}
    known = gathered("policies", SIZES, found)
    page = ("# Policies of the server's cache\n\nHit ratio in percent behind clients' LRU caches of 1 MiB, reads of "
            "4 KiB blocks. The paper's four policies\nfirst, then later ones; opt knows the future.\n")
    drawn = []
    for name, of in known.items():
        by = of["hit_ratio"]
        touched = size(of["distinct_bytes"] // MIB * MIB)
        page += (f"\n{named(name, known)}: {of['references']:,} references to {touched}\n\n"
                 + table(("cache", *POLICIES), by_size(by, POLICIES)) + "\n")
        series = [plot.line(policy, [(bytes_ / MIB, ((1 - hit) / (1 - lru) - 1) * 100) for (bytes_, hit), (_, lru)
                                     in zip(by[policy], by["lru"], strict=True)])
                  for policy in POLICIES if policy != "lru"]
        if max(abs(y) for one in series for _, y in one["points"]) < 2:
            page += "\nAll are within 2 % of LRU's misses: no plot.\n"
            continue
        drawn.append((f"policies-{name}", plot.lines(f"{name}: misses, more (+) or fewer (-) than LRU's", "cache, MiB",
                                                     "% of LRU's misses", series, log=True)))
    storms = [name for name in STORMS if name in known]
    page += ("\n## Storms at the length of chunks\n\nBlocks of 64 KiB, no client cache, hit ratio in percent of "
             "references to blocks.\n")
    for name in storms:
        by = known[name]["hit_ratio_64k"]
        page += f"\n{named(name, known)}:\n\n" + table(("cache", *STORM_POLICIES), by_size(by, STORM_POLICIES)) + "\n"
    page += "\n## One image for all\n\nLRU, no client cache, blocks of 4 KiB, hit ratio in percent of reads.\n"
    for name in storms:
        rows = [(what, *(f"{hit * 100:.1f}" for _, hit in points)) for what, points in known[name]["sharing"].items()]
        sizes = [size(bytes_) for bytes_, _ in known[name]["sharing"]["all private"]]
        page += f"\n{named(name, known)}:\n\n" + table(("blocks", *sizes), rows) + "\n"
    common.keep("policies", {"loads": known}, page + common.note(known), drawn)


def chosen(policies):
    """Policies for the command line."""
    return [word for policy in policies for word in ("--policy", policy)]


def by_policy(view):
    """(bytes, hit ratio) by policy."""
    by = {}
    for row in view["rows"]:
        by.setdefault(row["policy"], []).append((row["bytes"], row["hit_ratio"]))
    return by


def by_size(by, policies):
    """Rows of a table: a size of the cache, hits in percent by policy."""
    return [(size(bytes_), *(f"{by[policy][at][1] * 100:.2f}" for policy in policies))
            for at, (bytes_, _) in enumerate(by["lru"])]


def table2(sojourn, say):
    """Hits and misses of near and of far references, by policy."""
    found = {}
    ready = {name: (sharing, trace) for name, sharing, trace
             in traces.at_hand(sojourn, dict.fromkeys(name for name, *_ in SPLITS), say)}
    for name, client, cache, distance in SPLITS:
        if name not in ready:
            continue
        sharing, trace = ready[name]
        view = sojourn("simulate", "cache", trace, "--share", sharing, "--client", client, "--size", cache, "--split",
                       distance, *chosen(POLICIES))
        found[case(name, client)] = {"client": client, "cache": cache, "distance": distance,
                                     "references": view["references"],
                                     "split": {row["policy"]: row["split"] for row in view["rows"]}}
    known = gathered("table2", [case(name, client) for name, client, *_ in SPLITS], found)
    page = ("# Table 2: hits and misses by temporal distance\n\nReferences that are the first of a block are in no "
            "column: every policy misses them. The last columns say how\nmuch fewer misses than LRU there are of far "
            "references, and of all.\n\nThe paper's, in thousands, 256 MiB, split at 32 k (its rows do not have the "
            "same sum, though all are of one trace):\n\n"
            + split_table({policy: PAPER_TABLE2[policy] for policy in ("lru", "fbr", "twoq", "fmpq")}, True) + "\n")
    for name, of in known.items():
        page += (f"\n{named(name, known)}, {of['references']:,} references, a server's cache of {size_of(of['cache'])}, "
                 f"split at {of['distance']:,}:\n\n" + split_table(of["split"]) + "\n")
    shown = ("fmpq", "twoq", "fbr", "lru")
    series = [("the paper", [PAPER_TABLE2[p][3] / PAPER_TABLE2["lru"][3] * 100 for p in shown])]
    series += [(name, [of["split"][p][3] / of["split"]["lru"][3] * 100 for p in shown]) for name, of in known.items()]
    drawn = plot.bars("Misses of far references, percent of LRU's", "policy", "%", ("FMPQ", "2Q", "FBR", "LRU"), series)
    common.keep("table2", {"loads": known}, page + common.note(known), [("table2", drawn)])


def case(load, client):
    """A load behind clients' caches of a size."""
    return f"{load} behind {size_of(client)}"


def split_table(splits, sums=False):
    """Rows of near and far hits and misses by policy."""
    near, far = splits["lru"][1], splits["lru"][3]
    rows = [(policy, *(f"{n:,}" for n in s), *([f"{sum(s):,}"] if sums else []), percent(s[0] / max(1, s[0] + s[1])),
             percent(s[2] / max(1, s[2] + s[3])), percent(s[3] / far - 1) if far else "-",
             percent((s[1] + s[3]) / (near + far) - 1)) for policy, s in splits.items()]
    return table(("policy", "near hits", "near misses", "far hits", "far misses", *(["sum"] if sums else []), "near hit",
                  "far hit", "far misses to LRU's", "all to LRU's"), rows)


def size_of(text):
    """A size as the command line has it, as people read it."""
    return size(int(text[:-1]) * {"K": KIB, "M": MIB}[text[-1]])
