"""Table 1, what a request costs a server, and figures 5 to 7, what follows from it."""

import os
import tomllib

from . import common, plot, server
from .common import KIB, RESULTS, percent, table

#: what the paper's table 1 says of a read at its disk, in milliseconds by KiB of the block
LOCAL_DISK = {4: 6.76, 32: 7.2}
BLOCKS = (4, 8, 16, 32)
CLIENTS = (1, 5, 15, 30, 50)
MANY = 50


def table1(sojourn, say):
    """The demands of a server of this product, whose store is behind a disk like the paper's."""
    profile = os.path.join(RESULTS, "server.toml")
    os.makedirs(RESULTS, exist_ok=True)
    with server.slow(sojourn.binary, say) as lab:
        say("measuring, about two minutes")
        view = sojourn("--home", lab.home, "model", "fit", lab.uri("golden"), "--out", profile, "--block", "4K,32K",
                       "--loads", "1,4,16", "--check", "2,8", "--hot", "8M", "--time", "4s")
    rename(profile, "sojourn behind a slow disk")
    view["profile"] = os.path.basename(profile)
    page = "# Table 1: what a request costs\n\n" + profile_table(profile) + "\n"
    runs = [(common.size(r["block"]), r["clients"], percent(r["hit"]), f"{r['throughput']:.1f}",
             f"{r['predicted_throughput']:.1f}", f"{r['response_ms']:.2f}", f"{r['predicted_response_ms']:.2f}",
             percent(r["error"]), "fit" if r["used"] else "check") for r in view["runs"]]
    page += ("\nWhat was measured, and what the exact solution of the model says with these demands:\n\n"
             + table(("block", "clients", "hits", "requests/s", "model", "response, ms", "model", "off", "for"), runs)
             + "\n\nThe largest difference at loads that were not used for the fit is "
             + f"{percent(view['worst_error'])}.\n")
    common.keep("table1", view, page)


def rename(path, name):
    """Gives a profile a name that does not change with every run."""
    with open(path, encoding="utf-8") as f:
        lines = f.readlines()
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(f'name = "{name}"\n' if line.startswith('name = "nbd') else line for line in lines)


def profile_table(path):
    """Demands in milliseconds of the paper's server and of this one."""
    with open(path, "rb") as f:
        centres = tomllib.load(f)["centre"]
    rows = [("the paper's", "CPU", "0.1", "0.23", "", ""), ("", "network", "0.17", "0.5", "", ""),
            ("", "disk", "", "", "6.76", "7.2"), ("", "client (delay)", "0.32", "2.56", "", "")]
    for at, centre in enumerate(centres):
        cells = [cell for key in ("request_ms", "miss_ms") for cell in demand(centre.get(key))]
        kind = " (delay)" if centre.get("delay") else ""
        rows.append(("this one" if at == 0 else "", centre["name"] + kind, *cells))
    return table(("server", "centre", "request, 4 KiB", "request, 32 KiB", "miss, 4 KiB", "miss, 32 KiB"), rows)


def demand(value):
    """A demand for 4 and 32 KiB, in milliseconds."""
    if value is None:
        return "", ""
    if isinstance(value, dict):
        return tuple(f"{value[key]:.3g}" if key in value else "" for key in ("4K", "32K"))
    return f"{value:.3g}", f"{value:.3g}"


def servers(say):
    """The servers that figures 5 to 7 are about: a name, a short one, a profile."""
    yield "the paper's server", "paper", "transcom"
    own = os.path.join(RESULTS, "server.toml")
    if os.path.exists(own):
        yield "this server", "own", own
    else:
        say("without this server: experiments/transcom/run table1 measures it")


def solve(sojourn, profile):
    """All of it: {(KiB, hit): {clients: row}}, and the whole answer."""
    view = sojourn("model", "solve", profile, "--clients", f"1-{MANY}", "--hit", "0-1:0.01", "--block",
                   ",".join(f"{block}K" for block in BLOCKS))
    cases = {(case["block"] // KIB, round(case["hit"], 2)): {row["clients"]: row for row in case["rows"]}
             for case in view["cases"]}
    return cases, view


def hits(lowest=0):
    """Hit ratios in hundredths."""
    return [n / 100 for n in range(lowest, 101)]


def figure5(sojourn, say):
    """Throughput by hit ratio, block and number of clients."""
    found, drawn, page = {}, [], "# Figure 5: throughput\n"
    for name, short, profile in servers(say):
        cases, view = solve(sojourn, profile)
        shown = (0, 0.4, 0.8, 0.9, 0.95, 1)
        rate = {block: {hit: cases[block, hit][MANY]["bytes_per_second"] / common.MIB for hit in hits()}
                for block in BLOCKS}
        asked = {block: {hit: cases[block, hit][MANY]["throughput"] for hit in shown} for block in BLOCKS}
        full = {block: saturation(cases[block, 1.0], view, block) for block in BLOCKS}
        found[short] = {"mib_per_second": rate, "requests_per_second": asked, "at_full_hits": full}
        rows = [(f"{block} KiB", *(f"{rate[block][hit]:.2f}" for hit in shown),
                 f"{rate[block][0.4] / rate[block][0]:.1f}", f"{rate[block][1] / rate[block][0.8]:.1f}")
                for block in BLOCKS]
        page += (f"\n## Of {name}\n\n{MANY} clients, MiB/s by the hit ratio of the server's cache:\n\n"
                 + table(("block", *(percent(hit, 0) for hit in shown), "40 % : 0 %", "100 % : 80 %"), rows)
                 + "\n\nThe same in requests/s:\n\n"
                 + table(("block", *(percent(hit, 0) for hit in shown)),
                         [(f"{block} KiB", *(f"{asked[block][hit]:.0f}" for hit in shown)) for block in BLOCKS])
                 + "\n\nWhen everything hits, by number of clients: the knee, and where 99 and 99.9 % of the limit are "
                 "reached:\n\n"
                 + table(("block", "requests/s at most", "knee", "99 %", "99.9 %"),
                         [(f"{block} KiB", f"{f['limit']:.0f}", f"{f['knee']:.1f}", f["99 %"] or f"over {MANY}",
                           f["99.9 %"] or f"over {MANY}") for block, f in full.items()]) + "\n")
        series = [(f"{block} KiB", [(hit * 100, rate[block][hit]) for hit in hits()]) for block in BLOCKS]
        drawn.append((f"figure5-{short}", plot.lines(f"{name}, {MANY} clients", "hit ratio, %", "MiB/s", series,
                                                     names=tenths())))
    common.keep("figure5", found, page, drawn)


def saturation(rows, view, block):
    """How throughput grows with the clients when everything hits."""
    case = next(case for case in view["cases"] if case["block"] == block * KIB and case["hit"] == 1)
    reached = {share: next((n for n, row in sorted(rows.items()) if row["throughput"] >= part * case["limit"]), None)
               for share, part in (("99 %", 0.99), ("99.9 %", 0.999))}
    return {"limit": case["limit"], "knee": case["knee"], **reached}


def figure6(sojourn, say):
    """Latency by hit ratio, and from where on it is below a local disk's."""
    found, drawn = {}, []
    page = ("# Figure 6: latency\n\nHow long a client waits for a request, all centres and delays. A local disk "
            "answers 4 KiB in 6.76 ms and 32 KiB\nin 7.2 ms (the paper's table 1).\n")
    for name, short, profile in servers(say):
        cases, _ = solve(sojourn, profile)
        found[short] = {}
        for block, local in LOCAL_DISK.items():
            latency = {n: {hit: cases[block, hit][n]["response_ms"] for hit in hits()} for n in CLIENTS}
            better = {n: next((hit for hit, ms in by.items() if ms < local), None) for n, by in latency.items()}
            found[short][f"{block} KiB"] = {"response_ms": latency, "below_local_disk_from": better}
            shown = (0, 0.5, 0.8, 0.9, 0.95, 1)
            rows = [(n, *(f"{by[hit]:.2f}" for hit in shown), "never" if better[n] is None else percent(better[n], 0))
                    for n, by in latency.items()]
            page += (f"\n## Of {name}, blocks of {block} KiB\n\nMilliseconds by hit ratio:\n\n"
                     + table(("clients", *(percent(hit, 0) for hit in shown), "below a local disk from"), rows) + "\n")
        series = [(f"{n} clients", [(hit * 100, by[hit]) for hit in hits()])
                  for n, by in found[short]["4 KiB"]["response_ms"].items()]
        series.append(("local disk", [(0, LOCAL_DISK[4]), (100, LOCAL_DISK[4])]))
        drawn.append((f"figure6-{short}", plot.lines(f"{name}, 4 KiB", "hit ratio, %", "milliseconds", series, top=60,
                                                     names=tenths())))
    common.keep("figure6", found, page, drawn)


def figure7(sojourn, say):
    """Utilisation of the centres by hit ratio, and where the bottleneck moves."""
    found, drawn, page = {}, [], "# Figure 7: utilisation\n"
    for name, short, profile in servers(say):
        cases, view = solve(sojourn, profile)
        used = {block: {hit: cases[block, hit][MANY]["utilisation"] for hit in hits()} for block in LOCAL_DISK}
        found[short] = {"switches": view["switches"], "utilisation": used}
        shown = (0, 0.8, 0.9, 0.95, 0.98, 0.99, 1)
        rows = [(f"{block} KiB", centre, *(percent(by[hit][centre]) for hit in shown))
                for block, by in used.items() for centre in by[0]]
        page += (f"\n## Of {name}\n\n{MANY} clients, by hit ratio:\n\n"
                 + table(("block", "centre", *(percent(hit, 0) for hit in shown)), rows) + "\n\n")
        page += "\n".join(f"- {s['block'] // KIB} KiB: {s['below']} is the bottleneck below {percent(s['hit'])} hits, "
                          f"{s['above']} above" for s in view["switches"]) + "\n"
        series = [(f"{centre}, {block} KiB", [(hit * 100, by[hit][centre] * 100) for hit in hits(50)])
                  for block, by in used.items() for centre in by[0]]
        drawn.append((f"figure7-{short}", plot.lines(f"{name}, {MANY} clients", "hit ratio, %", "utilisation, %",
                                                     series, top=100, names=tenths(50))))
    common.keep("figure7", found, page, drawn)


def tenths(lowest=0):
    """Ticks of a hit ratio."""
    return [(n, str(n)) for n in range(lowest, 101, 10)]
