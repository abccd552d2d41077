"""NBD addresses and QEMU's block devices for them."""

import os
import urllib.parse

from . import LabError


def parse_nbd(uri):
    """nbd://host:port/export or nbd+unix:///export?socket=PATH as a dictionary."""
    u = urllib.parse.urlsplit(uri)
    export = urllib.parse.unquote(u.path.lstrip("/"))
    if u.scheme == "nbd":
        return {"kind": "tcp", "host": u.hostname or "localhost", "port": u.port or 10809, "export": export}
    if u.scheme == "nbd+unix":
        query = urllib.parse.parse_qs(u.query)
        if "socket" not in query:
            raise LabError(f"no socket= in {uri}")
        return {"kind": "unix", "path": query["socket"][0], "export": export}
    raise LabError(f"not an NBD address: {uri}")


def blockdev(disk, node="disk0"):
    """The -blockdev objects for an NBD address or a local file (raw, or qcow2 by its name)."""
    below = {"node-name": node + "-below", "discard": "unmap"}
    kind = "raw"
    if disk.startswith("nbd"):
        a = parse_nbd(disk)
        below.update({"driver": "nbd", "export": a["export"]})
        if a["kind"] == "tcp":
            below["server"] = {"type": "inet", "host": a["host"], "port": str(a["port"])}
        else:
            below["server"] = {"type": "unix", "path": a["path"]}
    else:
        below.update({"driver": "file", "filename": os.path.abspath(disk)})
        kind = "qcow2" if disk.endswith(".qcow2") else "raw"
    return [below, {"driver": kind, "node-name": node, "file": below["node-name"], "discard": "unmap"}]
