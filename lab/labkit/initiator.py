"""The kernel's iSCSI initiator in a guest: every combination of sessions, digests, secrets and time-outs that people
set, with a file system on the disk while the server is killed."""

import os
import time
from dataclasses import dataclass

from .guest import Guest
from .shell import free_port, run, write_file

SIZE = 512 << 20
"""Bytes of the disk."""

ROUNDS = 60
"""Operations of each of the load's four writers."""

USER, SECRET = "lab", "open sesame, lab"
TARGET_USER, TARGET_SECRET = "target", "it is me, indeed"

TARGET = "iqn.2026-11.io.sojourn:scratch"

NETWORK = ("modprobe virtio_net && modprobe iscsi_tcp && modprobe sd_mod && modprobe crc32c_generic && ip link set lo up && "
           "ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0 && mkdir -p /run/lock/iscsi /mnt/x && "
           "echo InitiatorName=iqn.2026-11.test:guest > /etc/iscsi/initiatorname.iscsi && iscsid")
"""Has a guest be ready to log in."""


@dataclass(frozen=True)
class Way:
    """How the initiator is set."""

    header: bool = False
    """Whether headers have a digest."""
    data: bool = False
    """Whether data has one."""
    secrets: int = 0
    """1: the initiator proves who it is; 2: the target does, too."""
    sessions: int = 1
    """Sessions at a time."""
    patience: int = 120
    """Seconds that requests wait for a lost session; then they fail."""

    def settings(self):
        """What iscsiadm is told, by name."""
        digest = {True: "CRC32C", False: "None"}
        found = {"node.conn[0].iscsi.HeaderDigest": digest[self.header],
                 "node.conn[0].iscsi.DataDigest": digest[self.data],
                 "node.session.nr_sessions": str(self.sessions),
                 "node.session.timeo.replacement_timeout": str(self.patience),
                 # Else a session is given up with what waits for it after five seconds without an answer.
                 "node.conn[0].timeo.noop_out_interval": "0", "node.conn[0].timeo.noop_out_timeout": "0",
                 "node.session.auth.authmethod": "CHAP" if self.secrets else "None"}
        if self.secrets:
            found |= {"node.session.auth.username": USER, "node.session.auth.password": SECRET}
        if self.secrets > 1:
            found |= {"node.session.auth.username_in": TARGET_USER, "node.session.auth.password_in": TARGET_SECRET}
        return found

    def __str__(self):
        digests = "+".join(name for name, used in (("header", self.header), ("data", self.data)) if used)
        return (f"digests {digests or 'none'}, {('no secret', 'CHAP', 'mutual CHAP')[self.secrets]}, "
                f"sessions {self.sessions}, time-out {self.patience} s")


def ways(with_secrets):
    """Every pair of settings: of digests and sessions, and the time-outs once with each digest."""
    proofs = (1, 2) if with_secrets else (0,)
    found = [Way(header, data, secrets, sessions)
             for header in (False, True) for data in (False, True) for secrets in proofs for sessions in (1, 2)]
    return found + [Way(digests, digests, proofs[-1], 1, patience) for digests in (False, True) for patience in (0, 20)]


def initiators(server, golden):
    """A guest logs in in every way to one disk, works on a file system there while its server is killed, and leaves."""
    blank = os.path.join(server.sockets, "blank.raw")
    with open(blank, "wb") as f:
        f.truncate(SIZE)
    server.command("image", "import", blank, "blank")
    server.command("disk", "create", "box", "--from", "debian")
    server.command("disk", "create", "scratch", "--from", "blank")
    secrets = os.path.join(server.home, "chap")
    write_file(secrets, f"{USER}:{SECRET}:{TARGET_USER}:{TARGET_SECRET}\n", 0o600)
    # The guest's own disk is not of the server that is killed.
    own = os.path.join(server.sockets, "box.raw")
    run(["cp", "--sparse=always", os.path.join(golden, "golden.raw"), own])
    passed, killed = [], 0
    with Guest(golden, own, memory=512, cpus=2, network=True) as guest:
        guest.start().ready()
        guest.execute(NETWORK)
        for with_secrets in (False, True):
            port = free_port()
            options = ["--iscsi", f"127.0.0.1:{port}", *(["--iscsi-chap", secrets] if with_secrets else [])]
            server.start(options=options)
            for way in ways(with_secrets):
                killed += _use(server, guest, port, options, way)
                passed.append(str(way))
            if with_secrets:
                _refused(guest, port)
            server.stop()
        errors = guest.execute("dmesg | grep -ciE 'aborting journal|remounting|digest error|protocol error' || true")
        guest.poweroff()
    return {"passed": passed, "killed": killed, "errors": int(errors["note"])}


def _use(server, guest, port, options, way):
    """One way; how often the server was killed."""
    node = f"-m node -T {TARGET} -p 10.0.2.2:{port}"
    guest.execute(f"iscsiadm {node} -o new >/dev/null")
    for name, value in way.settings().items():
        guest.execute(f"iscsiadm {node} -o update -n '{name}' -v '{value}'")
    guest.execute(f"iscsiadm {node} --login >/dev/null")
    disks = "/sys/class/iscsi_session/session*/device/target*/*/block"
    guest.execute(f"until [ $(ls -d {disks}/* 2>/dev/null | wc -l) = {way.sessions} ]; do sleep 0.1; done")
    disks = guest.execute(f"ls {disks} | grep '^sd' | sort | paste -sd' '")["note"].split()
    disk = f"/dev/{disks[0]}"
    guest.execute(f"mkfs.ext4 -q -F {disk} && mount -o discard {disk} /mnt/x")
    guest.execute(f"rm -f /run/done; (fsload /mnt/x/load {ROUNDS} >/run/load.log 2>&1 && touch /run/done) "
                  "</dev/null >/dev/null 2>&1 &")
    kills = 0
    if way.patience:
        time.sleep(0.5)
        server.crash()
        server.start(options=options)
        kills = 1
    guest.execute("until [ -e /run/done ]; do sleep 0.1; done", timeout=180)
    guest.execute(f"umount /mnt/x && e2fsck -fn {disk} && mount -o ro {disk} /mnt/x && fsload --check /mnt/x/load && "
                  "umount /mnt/x", timeout=180)
    if way.sessions > 1:
        # Both are one disk.
        other = f"/dev/{disks[1]}"
        guest.execute(f"dd if=/dev/urandom of={disk} bs=64k count=16 oflag=direct conv=fsync 2>/dev/null && "
                      f"[ \"$(dd if={disk} bs=64k count=16 iflag=direct 2>/dev/null | md5sum)\" = "
                      f"\"$(dd if={other} bs=64k count=16 iflag=direct 2>/dev/null | md5sum)\" ]")
    if not way.patience:
        # What waits for nobody fails at once; the session comes back all the same.
        server.crash()
        time.sleep(0.5)
        refused = guest.execute(f"dd if=/dev/urandom of={disk} bs=4k count=1 oflag=direct conv=fsync", check=False)
        if not refused["rc"]:
            raise guest.trouble(f"{way}: a write was answered without a server")
        server.start(options=options)
        guest.execute(f"until dd if=/dev/urandom of={disk} bs=4k count=1 oflag=direct conv=fsync 2>/dev/null; "
                      "do sleep 0.2; done", timeout=90)
        kills = 1
    guest.execute(f"iscsiadm {node} --logout >/dev/null && iscsiadm {node} -o delete >/dev/null")
    return kills


def _refused(guest, port):
    """Who does not know the secret gets nothing, and is told so."""
    node = f"-m node -T {TARGET} -p 10.0.2.2:{port}"
    wrong = Way(secrets=1).settings() | {"node.session.auth.password": "open sesame, you"}
    guest.execute(f"iscsiadm {node} -o new >/dev/null")
    for name, value in wrong.items():
        guest.execute(f"iscsiadm {node} -o update -n '{name}' -v '{value}'")
    # 24: the authorization failed (iscsiadm(8)).
    answer = guest.execute(f"iscsiadm {node} --login", check=False)
    if answer["rc"] != 24:
        raise guest.trouble(f"a wrong secret was answered: {answer}")
    guest.execute(f"iscsiadm {node} -o delete >/dev/null")
