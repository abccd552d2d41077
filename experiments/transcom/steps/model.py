"""Table 1, what a request costs a server, figure 4, how true the model is, and figures 5 to 7, what follows."""

import json
import math
import os
import re
import tomllib

from . import common, plot, server
from .common import KIB, RESULTS, percent, table

#: what the paper's table 1 says of a read at its disk, in milliseconds by KiB of the block
LOCAL_DISK = {4: 6.76, 32: 7.2}
BLOCKS = (4, 8, 16, 32)
CLIENTS = (1, 5, 15, 30, 50)
MANY = 50
#: a profile that misses the loads it was checked with by more is not kept: the machine was not quiet
WORST = 0.3
#: hit ratios of figure 6(a)
SHOWN = (0, 0.5, 0.8, 0.9, 0.95, 1)
PREDICT = os.path.join(common.TOP, "experiments/predict/results.json")


def table1(sojourn, say):
    """The demands of a server of this product, whose store is behind a disk like the paper's."""
    profile = os.path.join(sojourn.work, "server.toml")
    os.makedirs(RESULTS, exist_ok=True)
    load = os.getloadavg()[0]
    with server.slow(sojourn.binary, say) as lab:
        say("measuring, two to six minutes")
        view = sojourn("--home", lab.home, "model", "fit", lab.uri("golden"), "--out", profile, "--block", "4K,32K",
                       "--loads", "1,4,16", "--check", "2,8", "--hot", "8M", "--time", "4s", "--attempts", "3")
    if view["worst_error"] > WORST:
        say(f"the profile misses its own check by {percent(view['worst_error'])}, so it is not kept: the machine is "
            f"not quiet (load {load:.1f} before this began)")
        return
    rename(profile, os.path.join(RESULTS, "server.toml"))
    view |= {"profile": "server.toml", "load_average": load}
    page = ("# Table 1: what a request costs\n\n" + profile_table(os.path.join(RESULTS, "server.toml"))
            + f"\n\nThe machine's load before the measurement was {load:.1f}.\n")
    runs = [(common.size(r["block"]), r["clients"], percent(r["hit"]), f"{r['throughput']:.1f}",
             f"{r['predicted_throughput']:.1f}", f"{r['response_ms']:.2f}", f"{r['predicted_response_ms']:.2f}",
             percent(r["error"]), "fit" if r["used"] else "check") for r in view["runs"]]
    page += ("\nWhat was measured, and what the exact solution of the model says with these demands:\n\n"
             + table(("block", "clients", "hits", "requests/s", "model", "response, ms", "model", "off", "for"), runs)
             + "\n\nThe largest difference at loads that were not used for the fit is "
             + f"{percent(view['worst_error'])}.\n")
    common.keep("table1", view, page)


def rename(path, kept):
    """Keeps a profile under a name that does not change with every run."""
    with open(path, encoding="utf-8") as f:
        lines = f.readlines()
    with open(kept, "w", encoding="utf-8") as f:
        f.writelines('name = "sojourn behind a slow disk"\n' if line.startswith('name = "nbd') else line
                     for line in lines)


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


def figure4(sojourn, say):
    """The response that the model says and the one that is measured, out of what experiments/predict kept."""
    with open(PREDICT, encoding="utf-8") as f:
        cases = json.load(f)
    rows, drawn, every = [], [], []
    for number, case in enumerate(cases, 1):
        for row in case:
            off = row["predicted_r"] / row["r"] - 1
            every.append(abs(off))
            rows.append((number, row["clients"], f"{row['r']:.2f}", f"{row['predicted_r']:.2f}", percent(off)))
        series = [plot.line("the model", [(row["clients"], row["predicted_r"]) for row in case]),
                  plot.line("measured", [(row["clients"], row["r"]) for row in case], dots=True)]
        drawn.append((f"figure4-{number}", plot.lines(f"Response, case {number} of experiments/predict", "clients",
                                                      "milliseconds", series)))
    page = ("# Figure 4: the model's response and the measured one\n\nThe paper plots both for its server and calls "
            "them pretty similar, without figures. Here they are those of\n[experiments/predict](../../predict/results.md)"
            ": a server behind a disk with one arm, a profile fitted to other loads,\nthree cases with images, loads, "
            "caches and disks of their own.\n\n"
            + table(("case", "clients", "measured, ms", "model, ms", "off"), rows)
            + f"\n\nOf {len(every)} responses the model is off by {percent(max(every))} at most.\n")
    common.keep("figure4", {"worst": max(every), "cases": cases}, page, drawn)


def servers(say):
    """The servers that figures 5 to 7 are about, this one if its profile holds: a name, a short one, a profile, and
    whose demands these are."""
    yield ("the paper's server", "paper", "transcom",
           "The demands are those of the paper's table 1; between 4 and 32 KiB they are interpolated.")
    own, error = os.path.join(RESULTS, "server.toml"), own_error()
    if error is None:
        say("without this server: experiments/transcom/run table1 measures it")
    elif error > WORST:
        say(f"without this server: its profile misses its own check by {percent(error)}")
    else:
        yield ("this server", "own", own,
               "The demands are measured: [table 1](table1.md), profile [server.toml](server.toml). At loads that it was "
               f"not made from,\nthroughput differs by up to {percent(error)}.")


def own_error():
    """How far this server's profile misses the loads that it was checked with; None where there is no profile."""
    path = os.path.join(RESULTS, "server.toml")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as f:
        error = re.search(r"at most ([0-9.]+) %", f.read())
    return float(error[1]) / 100 if error else math.inf


def left_out():
    """What a page says of this server where its profile is not used."""
    error = own_error()
    if error is None or error <= WORST:
        return ""
    return ("\n## Of this server\n\nNothing: its profile ([table 1](table1.md)) was made beside other work and misses the "
            f"loads that it was checked with by up to\n{percent(error)}; {percent(WORST, 0)} are allowed.\n")


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
    for name, short, profile, whose in servers(say):
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
        page += (f"\n## Of {name}\n\n{whose}\n\n{MANY} clients, MiB/s by the hit ratio of the server's cache:\n\n"
                 + table(("block", *(percent(hit, 0) for hit in shown), "40 % : 0 %", "100 % : 80 %"), rows)
                 + "\n\nThe same in requests/s:\n\n"
                 + table(("block", *(percent(hit, 0) for hit in shown)),
                         [(f"{block} KiB", *(f"{asked[block][hit]:.0f}" for hit in shown)) for block in BLOCKS])
                 + "\n\nWhen everything hits, by number of clients: the knee, and where 99 and 99.9 % of the limit are "
                 "reached:\n\n"
                 + table(("block", "requests/s at most", "knee", "99 %", "99.9 %"),
                         [(f"{block} KiB", f"{f['limit']:.0f}", f"{f['knee']:.1f}", f["99 %"] or f"over {MANY}",
                           f["99.9 %"] or f"over {MANY}") for block, f in full.items()]) + "\n")
        series = [plot.line(f"{block} KiB", [(hit * 100, rate[block][hit]) for hit in hits()]) for block in BLOCKS]
        drawn.append((f"figure5-{short}", plot.lines(f"Throughput of {name}, {MANY} clients", "hit ratio, %",
                                                     "MiB/s (logarithmic)", series, names=tenths(), log_y=True)))
    common.keep("figure5", found, page + left_out(), drawn)


def saturation(rows, view, block):
    """How throughput grows with the clients when everything hits."""
    case = next(case for case in view["cases"] if case["block"] == block * KIB and case["hit"] == 1)
    reached = {share: next((n for n, row in sorted(rows.items()) if row["throughput"] >= part * case["limit"]), None)
               for share, part in (("99 %", 0.99), ("99.9 %", 0.999))}
    return {"limit": case["limit"], "knee": case["knee"], **reached}


def figure6(sojourn, say):
    """Throughput by number of clients (a), latency by hit ratio (b), and from where on it is below a local disk's."""
    found, drawn = {}, []
    page = ("# Figure 6: throughput and latency\n\n(a) is the throughput by number of clients and hit ratio; (b) how "
            "long a client waits for a request, all centres and\ndelays. A local disk answers 4 KiB in 6.76 ms and 32 "
            "KiB in 7.2 ms (the paper's table 1).\n")
    for name, short, profile, whose in servers(say):
        cases, view = solve(sojourn, profile)
        found[short] = {}
        page += f"\n## Of {name}\n\n{whose}\n"
        for block, local in LOCAL_DISK.items():
            rate = {hit: {n: cases[block, hit][n]["throughput"] for n in range(1, MANY + 1)} for hit in SHOWN}
            full = saturation(cases[block, 1.0], view, block)
            latency = {n: {hit: cases[block, hit][n]["response_ms"] for hit in hits()} for n in CLIENTS}
            better = {n: next((hit for hit, ms in by.items() if ms < local), None) for n, by in latency.items()}
            found[short][f"{block} KiB"] = {"requests_per_second": rate, "at_full_hits": full, "response_ms": latency,
                                            "below_local_disk_from": better}
            rows = [(percent(hit, 0), *(f"{by[n]:.0f}" for n in CLIENTS)) for hit, by in rate.items()]
            page += (f"\n### (a), blocks of {block} KiB\n\nRequests/s by hit ratio and number of clients:\n\n"
                     + table(("hits", *map(str, CLIENTS)), rows)
                     + f"\n\nWhen everything hits, clients begin to wait for each other at {full['knee']:.1f} of them; "
                     f"99 % of the limit of {full['limit']:.0f}\nare reached with {full['99 %'] or f'over {MANY}'}, "
                     f"99.9 % with {full['99.9 %'] or f'over {MANY}'} (the paper: saturated at about 15).\n")
            rows = [(n, *(f"{by[hit]:.2f}" for hit in (0, 0.5, 0.8, 0.9, 0.95, 1)),
                     "never" if better[n] is None else percent(better[n], 0)) for n, by in latency.items()]
            page += (f"\n### (b), blocks of {block} KiB\n\nMilliseconds by hit ratio:\n\n"
                     + table(("clients", *(percent(hit, 0) for hit in (0, 0.5, 0.8, 0.9, 0.95, 1)),
                              "below a local disk from"), rows) + "\n")
            series = [plot.line(f"{hit * 100:g} % hits", by.items()) for hit, by in rate.items()]
            if short == "paper" and block == 4:
                series.append(plot.line("the paper: full at about 15", [(15, rate[1][15])], dots=True))
            drawn.append((f"figure6a-{short}-{block}k", plot.lines(
                f"(a) Throughput of {name}, {block} KiB", "clients", "requests/s (logarithmic)", series, log_y=True,
                names=[(n, str(n)) for n in (1, 10, 20, 30, 40, 50)])))
        series = [plot.line(f"{n} client{'s' if n > 1 else ''}", [(hit * 100, by[hit]) for hit in hits()])
                  for n, by in found[short]["4 KiB"]["response_ms"].items()]
        series.append(plot.line("a local disk", [(0, LOCAL_DISK[4]), (100, LOCAL_DISK[4])]))
        drawn.append((f"figure6b-{short}", plot.lines(f"(b) Latency of {name}, 4 KiB", "hit ratio, %",
                                                      "milliseconds (logarithmic)", series, names=tenths(),
                                                      log_y=True)))
    common.keep("figure6", found, page + left_out(), drawn)


def figure7(sojourn, say):
    """Utilisation of the centres by hit ratio, and where the bottleneck moves."""
    found, drawn, page = {}, [], "# Figure 7: utilisation\n"
    for name, short, profile, whose in servers(say):
        cases, view = solve(sojourn, profile)
        used = {block: {hit: cases[block, hit][MANY]["utilisation"] for hit in hits()} for block in LOCAL_DISK}
        found[short] = {"switches": view["switches"], "utilisation": used}
        shown = (0, 0.8, 0.9, 0.95, 0.98, 0.99, 1)
        rows = [(f"{block} KiB", centre, *(percent(by[hit][centre]) for hit in shown))
                for block, by in used.items() for centre in by[0]]
        page += (f"\n## Of {name}\n\n{whose}\n\n{MANY} clients, by hit ratio:\n\n"
                 + table(("block", "centre", *(percent(hit, 0) for hit in shown)), rows) + "\n\n")
        page += "\n".join(f"- {s['block'] // KIB} KiB: {s['below']} is the bottleneck below {percent(s['hit'])} hits, "
                          f"{s['above']} above" for s in view["switches"]) + "\n"
        for block, by in used.items():
            series = [plot.line(centre, [(hit * 100, by[hit][centre] * 100) for hit in hits(50)]) for centre in by[0]]
            drawn.append((f"figure7-{short}-{block}k", plot.lines(
                f"Utilisation of {name}, {block} KiB, {MANY} clients", "hit ratio, %", "%", series, top=100,
                names=tenths(50))))
    common.keep("figure7", found, page + left_out(), drawn)


def tenths(lowest=0):
    """Ticks of a hit ratio."""
    return [(n, str(n)) for n in range(lowest, 101, 10)]
