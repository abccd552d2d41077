"""Machines without a disk whose power is cut while they write, and that start again at once.

Their server hears nothing of it: it still has the connections of the systems that ended.
"""

import concurrent.futures
import contextlib
import time
import urllib.request

from . import LabError, netboot
from .clients import Lost, NbdConnection
from .diskless import fsck
from .guest import Card, Guest
from .netboot import BRIDGE, HERE, PORT, Machine, Site
from .shell import free_port, run, tail

MACHINES = (Machine("cut-nbd", 30, "nbd"), Machine("cut-iscsi", 31, "iscsi"))
STRANGER = "10.77.0.99"
"""The address of another machine, which claims to be one of these."""
ROUNDS = 100
"""Operations of each of the load's four writers."""
PATIENCE = 1200
"""Seconds for a boot, which end what hangs: behind QEMU's reset iPXE sleeps for seconds now and then, with packets
waiting for it, and asks for the kernel again."""

COUNT = ("(i=$(($(tail -n 1 /var/ticks 2>/dev/null || echo 0)+1)); while echo $i >>/var/ticks && sync /var/ticks; do "
         "echo $i >/run/new && mv /run/new /run/flushed; i=$((i+1)); done) </dev/null >/dev/null 2>&1 &")
"""Counts in a file of the root; behind each flush it says how far that is."""


def power_cuts(server, golden):
    """Each machine is reset, and switched off and on, in the middle of its writes."""
    port, iscsi = free_port(), free_port()
    with Site(server.sockets, MACHINES), contextlib.ExitStack() as last:
        server.start(f"{HERE}:{port}", options=["--iscsi", f"{HERE}:{iscsi}", "--insecure"])
        run(["ip", "addr", "add", f"{STRANGER}/24", "dev", BRIDGE])
        for machine in MACHINES:
            server.command("machine", "assign", machine.mac, "--from", "debian", "--name", f"lab-{machine.name}",
                           "--method", machine.method)
        process, log = netboot.start(server)
        last.callback(process.wait)
        last.callback(process.terminate)
        try:
            with concurrent.futures.ThreadPoolExecutor(len(MACHINES)) as pool:
                found = list(pool.map(lambda machine: _cut(server, golden, machine, port), MACHINES))
        except LabError as e:
            raise LabError(f"{e}\n--- netboot said\n{tail(log)}\n--- the server said\n{tail(server.log)}") from e
        with open(log, encoding="utf-8") as said:
            refused = [line.strip() for line in said if "cannot start" in line]
        server.stop()
        # It may not have heard of the last goodbye yet.
        server.start(f"{HERE}:{port}", options=["--insecure"])
        for machine in MACHINES:
            fsck(server, f"lab-{machine.name}", "-n")
        server.stop()
    return {"refused": refused, "machines": {machine.name: facts for machine, facts in zip(MACHINES, found)}}


def _cut(server, golden, machine, port):
    """One machine; how long its starts took, and what was there after each."""
    card = Card(machine.tap, machine.mac)
    facts = {"seconds": [], "counted": []}
    with Guest(golden, None, name=machine.name, memory=768, card=card) as guest:
        facts["seconds"].append(guest.start().ready(timeout=PATIENCE))
        guest.execute(f"fsload /var/load {ROUNDS} && sync")
        flushed = _count(guest, facts)
        if machine.method == "nbd":
            _claim(server, guest, machine, port)
        # The button: the card and the processor begin anew, and no packet says so.
        guest.monitor.command("set-action", reboot="reset")
        flushed = _flushed(guest, flushed)
        guest.monitor.command("system_reset")
        guest.began = time.monotonic()
        facts["seconds"].append(guest.ready(timeout=PATIENCE))
        _check(server, guest, machine, flushed)
        flushed = _flushed(guest, _count(guest, facts))
    # The plug: the guest is killed, and another one has its card.
    with Guest(golden, None, name=machine.name, memory=768, card=card) as guest:
        facts["seconds"].append(guest.start().ready(timeout=PATIENCE))
        _check(server, guest, machine, flushed)
        _count(guest, facts)
        guest.poweroff(timeout=120)
    return facts


def _count(guest, facts):
    """Has it count, and write beside that; how far it is after a while."""
    guest.execute(COUNT)
    guest.execute(f"(while rm -rf /var/other && fsload /var/other {ROUNDS}; do :; done) </dev/null >/dev/null 2>&1 &")
    guest.execute("until [ -e /run/flushed ] && [ \"$(wc -c </run/flushed)\" -gt 1 ]; do sleep 0.1; done; "
                  "n=$(cat /run/flushed); until [ $(cat /run/flushed) -gt $((n+10)) ]; do sleep 0.1; done",
                  timeout=PATIENCE)
    count = _flushed(guest, 0)
    facts["counted"].append(count)
    return count


def _flushed(guest, before):
    """How far the counting is on stable storage."""
    return max(before, int(guest.execute("cat /run/flushed")["note"]))


def _check(server, guest, machine, flushed):
    """What was flushed before the power was cut is there, and nothing else has the disk."""
    if machine.method == "nbd":
        _alone(server, guest, machine)
    count = int(guest.execute("tail -n 1 /var/ticks")["note"])
    if count < flushed:
        raise guest.trouble(f"it had flushed {flushed} before its power was cut, and has {count}")
    guest.execute("fsload --check /var/load", timeout=PATIENCE)
    errors = guest.execute("dmesg | grep -ciE 'i/o error|aborting journal|remounting' || true")["note"]
    if errors != "0":
        raise guest.trouble(f"{errors} errors of its disk")


def _claim(server, guest, machine, port):
    """Somebody else claims to be this machine while it runs: it goes on, and the other one does not get its disk."""
    before, ended = _flushed(guest, 0), _ended(server, machine)
    for path in (f"/boot.ipxe?mac={machine.mac}", f"/machine/{machine.mac}/kernel"):
        with urllib.request.urlopen(f"http://{HERE}:{PORT}{path}", timeout=60) as answer:
            answer.read()
    with contextlib.suppress(Lost):
        NbdConnection((HERE, port), f"lab-{machine.name}", STRANGER).close()
        raise guest.trouble("a stranger got the disk of a machine that runs")
    guest.execute(f"until [ $(cat /run/flushed) -gt {before + 10} ]; do sleep 0.1; done", timeout=PATIENCE)
    if _ended(server, machine) != ended:
        raise guest.trouble("its connection was ended for a stranger")


def _ended(server, machine):
    """How many NBD connections of machines to its disk have ended."""
    with open(server.log, encoding="utf-8") as said:
        return len([line for line in said if "session closed peer=10." in line and f'"lab-{machine.name}"' in line])


def _alone(server, guest, machine):
    """The old system's connection is gone, whether or not the server would have noticed."""
    found = [export["connections"] for export in server.command("status")["exports"]
             if export["name"] == f"lab-{machine.name}"]
    if found != [1]:
        raise guest.trouble(f"its disk has {found} connections")
