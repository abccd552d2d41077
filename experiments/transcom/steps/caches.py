"""Figure 9, the clients' cache; figure 10 and table 2, the server's cache and its policies."""

from . import common, plot, traces
from .common import KIB, MIB, percent, size, table

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
#: table 2: load, its client caches, the server's cache, the distance
SPLITS = (("desktops", "1M", "256M", 32768), ("desktops", "16M", "256M", 32768),
          ("five-guests", "1M", "64M", 8192), ("storm4-desktop", "1M", "64M", 8192),
          ("demo", "1M", "16M", 2048))


def figure9(sojourn, say):
    """The hit ratio of the clients' caches by block and size, and what that is worth to 50 of them."""
    found = {}
    for name, trace in alone(sojourn, say):
        found[name] = {}
        for block in BLOCKS:
            for cache in CLIENTS:
                view = sojourn("simulate", "cache", trace, "--share", "private", "--block", f"{block}K", "--per", "4K",
                               "--client", f"{cache}M", "--policy", "lru", "--size", "16M")
                found[name][f"{cache} MiB, {block} KiB"] = view["client_hit_ratio"]
    costs = {hit: cost(sojourn, found, hit) for hit in (0.95, 0.975)}
    page = "# Figure 9: the cache of a client\n\nHit ratio of references of 4 KiB in each client's own LRU cache.\n"
    drawn = []
    for name, by in found.items():
        rows = [(f"{cache} MiB", *(percent(by[f"{cache} MiB, {block} KiB"]) for block in BLOCKS)) for cache in CLIENTS]
        page += f"\n{name}:\n\n" + table(("cache", *(f"{block} KiB" for block in BLOCKS)), rows) + "\n"
        series = [(f"{cache} MiB", [(block, by[f"{cache} MiB, {block} KiB"] * 100) for block in BLOCKS])
                  for cache in CLIENTS]
        drawn.append((f"figure9-{name}", plot.lines(f"{name}: hits in the client's cache", "block, KiB",
                                                    "% of references of 4 KiB", series, log=True, top=100)))
    page += ("\n## What a block size costs\n\nMilliseconds for each reference of 4 KiB of 50 clients with 1 MiB each: "
             "misses of the client's cache,\ntimes the response of the paper's server (`model solve transcom`) for "
             "such a block. In brackets the part that a\nclient cache of such blocks saves of a client without one, "
             "which asks for 4 KiB each time.\n")
    for hit, by in costs.items():
        rows = [(name, *(f"{ms:.2f} ({percent(1 - ms / by['response'][0], 0)})" for ms in costs))
                for name, costs in by["cost"].items()]
        head = ("load", *(f"{block} KiB" for block in BLOCKS[:5]))
        page += (f"\nThe server's cache hits {percent(hit)}; responses "
                 + ", ".join(f"{ms:.2f}" for ms in by["response"]) + " ms:\n\n" + table(head, rows) + "\n")
    common.keep("figure9", {"hit_ratio": found, "cost": costs}, page, drawn)


def alone(sojourn, say):
    """Loads for figure 9: the workstations one by one, and the guests."""
    for name, shift in traces.DESKTOPS:
        try:
            yield name, traces.desktop(sojourn, name, shift)
        except common.Missing as e:
            say(f"without {name}: {e}")
    for name, _, trace in traces.at_hand(sojourn, ("five-guests", "desktop-session", "storm4-desktop", "demo"), say):
        yield name, trace


def cost(sojourn, found, hit):
    """Mean milliseconds of a reference of 4 KiB by the block of the client's cache of 1 MiB."""
    view = sojourn("model", "solve", "transcom", "--clients", "50", "--hit", hit, "--block",
                   ",".join(f"{block}K" for block in BLOCKS[:5]))
    response = [case["rows"][0]["response_ms"] for case in view["cases"]]
    return {"response": response,
            "cost": {name: [(1 - by[f"1 MiB, {block} KiB"]) * ms for block, ms in zip(BLOCKS, response, strict=False)]
                     for name, by in found.items()}}


def figure10(sojourn, say):
    """The hit ratio of the server's cache by policy and size."""
    found, drawn = {}, []
    page = ("# Figure 10: the server's cache\n\nHit ratio in percent behind clients' LRU caches of 1 MiB, reads of "
            "4 KiB blocks. The paper's four policies\nfirst, then later ones; opt knows the future.\n")
    for name, sharing, trace in traces.at_hand(sojourn, SIZES, say):
        view = sojourn("simulate", "cache", trace, "--share", sharing, "--client", "1M", "--size", SIZES[name],
                       *chosen(POLICIES))
        by = by_policy(view)
        found[name] = {"references": view["references"], "distinct_bytes": view["distinct_blocks"] * view["block"],
                       "hit_ratio": by}
        touched = size(found[name]["distinct_bytes"] // MIB * MIB)
        page += (f"\n{name}: {view['references']:,} references to {touched}\n\n"
                 + table(("cache", *POLICIES), by_size(by, POLICIES)) + "\n")
        series = [(policy, [(bytes_ / MIB, hit * 100) for bytes_, hit in by[policy]]) for policy in POLICIES]
        drawn.append((f"figure10-{name}", plot.lines(f"{name}: hits in the server's cache", "cache, MiB", "% of reads",
                                                     series, log=True)))
    page += ("\n## Storms at the length of chunks\n\nBlocks of 64 KiB, no client cache, hit ratio in percent of "
             "references to blocks.\n")
    for name, sharing, trace in traces.at_hand(sojourn, [name for name in STORMS if name in found], say):
        view = sojourn("simulate", "cache", trace, "--share", sharing, "--block", "64K", "--size", STORMS[name],
                       *chosen(STORM_POLICIES))
        by = by_policy(view)
        found[name]["hit_ratio_64k"] = by
        page += f"\n{name}:\n\n" + table(("cache", *STORM_POLICIES), by_size(by, STORM_POLICIES)) + "\n"
    page += "\n## One image for all\n\nLRU, no client cache, blocks of 4 KiB, hit ratio in percent of reads.\n"
    for name, _, trace in traces.at_hand(sojourn, [name for name in STORMS if name in found], say):
        rows = []
        for what, options in (("shared until written", ["--share", "image"]), ("all private", ["--share", "private"]),
                              ("shared, writes cached too", ["--share", "image", "--writes"])):
            view = sojourn("simulate", "curve", trace, *options, "--size", "4M-256M")
            points = view["points"]
            rows.append((what, *(f"{point['hit_ratio'] * 100:.1f}" for point in points)))
            found[name][what] = [(point["bytes"], point["hit_ratio"]) for point in points]
        page += f"\n{name}:\n\n" + table(("blocks", *(size(point["bytes"]) for point in points)), rows) + "\n"
    common.keep("figure10", found, page, drawn)


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
    found = []
    page = ("# Table 2: hits and misses by temporal distance\n\nReferences that are the first of a block are in no "
            "column: every policy misses them. The last columns say how\nmuch fewer misses than LRU there are of far "
            "references, and of all that are not first ones.\n")
    wanted = {name for name, *_ in SPLITS}
    ready = {name: (sharing, trace) for name, sharing, trace in traces.at_hand(sojourn, wanted, say)}
    for name, client, cache, distance in SPLITS:
        if name not in ready:
            continue
        sharing, trace = ready[name]
        view = sojourn("simulate", "cache", trace, "--share", sharing, "--client", client, "--size", cache, "--split",
                       distance, *chosen(POLICIES))
        splits = {row["policy"]: row["split"] for row in view["rows"]}
        found.append({"load": name, "client": client, "cache": cache, "distance": distance,
                      "references": view["references"], "split": splits})
        far, near = splits["lru"][3], splits["lru"][1]
        rows = [(policy, *(f"{n:,}" for n in s), percent(s[0] / max(1, s[0] + s[1])),
                 percent(s[2] / max(1, s[2] + s[3])),
                 percent(s[3] / far - 1) if far else "-", percent((s[1] + s[3]) / (near + far) - 1))
                for policy, s in splits.items()]
        page += (f"\n{name}, {view['references']:,} references behind clients' {size_of(client)}, a server's cache of "
                 f"{size_of(cache)}, split at {distance:,}:\n\n"
                 + table(("policy", "near hits", "near misses", "far hits", "far misses", "near hit", "far hit",
                          "far misses to LRU's", "all to LRU's"), rows) + "\n")
    common.keep("table2", found, page)


def size_of(text):
    """A size as the command line has it, as people read it."""
    return size(int(text[:-1]) * {"K": KIB, "M": MIB}[text[-1]])
