"""The Debian package on a machine with systemd: installed, used, installed anew under a client, purged."""

import os

from . import LabError
from .guest import Guest
from .shell import run

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

SOCKET = "/run/sojourn/nbd.sock"
SOJOURN = "runuser -u sojourn -- sojourn --home /var/lib/sojourn"

ROUNDS = 250
"""Operations of each of the load's four writers."""


def package(server):
    """The package of the server's binary as a disk for a guest to copy, and its length in bytes."""
    out = os.path.join(server.sockets, "dist")
    diskless = os.path.join(os.path.dirname(server.binary), "static/sojourn-diskless")
    made = run([os.path.join(TOP, "packaging/dist"), server.binary, diskless, out, "deb"]).splitlines()[0]
    size = os.path.getsize(made)
    os.truncate(made, -(-size // 4096) * 4096)
    return made, size


def packaged(server, golden):
    """A package serves the kernel's own nbd client, which nobody connects anew, before and after it is installed
    again; and leaves nothing but disks."""
    deb, size = package(server)
    server.command("disk", "create", "box", "--from", "debian")
    server.start()
    with Guest(golden, server.uri("box"), firmware=True, memory=768, cpus=2, more=[deb]) as guest:
        guest.start().ready()
        guest.execute(f"head -c {size} /dev/vdb > /run/sojourn.deb && modprobe nbd")
        install = "dpkg --install /run/sojourn.deb"
        guest.execute(install)
        guest.execute("systemctl enable --now sojourn.socket sojourn.service")
        guest.execute("truncate -s 256M /run/blank.raw && chmod 644 /run/blank.raw && "
                      f"{SOJOURN} image import /run/blank.raw blank && {SOJOURN} disk create alice --from blank")
        guest.execute(f"nbd-client -unix {SOCKET} -N alice /dev/nbd0 && mkfs.ext4 -q /dev/nbd0 && mkdir -p /mnt/x && "
                      "mount /dev/nbd0 /mnt/x")
        # A user who is not in the group gets nothing.
        if not guest.execute(f"runuser -u nobody -- nbd-client -l -unix {SOCKET}", check=False)["rc"]:
            raise LabError("everybody may connect to the socket")
        main = "systemctl show --property MainPID --value sojourn.service"
        first = guest.execute(main)["note"]
        guest.execute(f"(fsload /mnt/x/load {ROUNDS} >/run/loaded && touch /run/done) >/dev/null 2>&1 &")
        guest.execute(install)
        second = guest.execute(main)["note"]
        guest.execute("until [ -e /run/done ]; do sleep 0.2; done", timeout=120)
        check = guest.execute("umount /mnt/x && e2fsck -fn /dev/nbd0 >/dev/null && mount -o ro /dev/nbd0 /mnt/x && "
                              "fsload --check /mnt/x/load")
        errors = guest.execute("dmesg | grep -c 'I/O error' || :")["note"]
        guest.execute("umount /mnt/x && nbd-client -d /dev/nbd0 && systemctl is-active sojourn.service")
        # It ends by itself, and is not killed.
        stopped = guest.execute("systemctl stop sojourn.socket sojourn.service; "
                                "systemctl show --property Result --value sojourn.service")["note"]
        guest.execute("systemctl start sojourn.socket sojourn.service")
        guest.execute("dpkg --purge sojourn")
        left = guest.execute("echo $(systemctl is-active sojourn.service sojourn.socket) $(ls /var/lib/sojourn/disks)")
        guest.poweroff()
    server.stop()
    return {"first": first, "second": second, "checked": check["note"], "errors": int(errors), "stopped": stopped,
            "left": left["note"]}
