#!/bin/bash
# The disk of a machine that has none: an NBD export, kept by sojourn-diskless. On the kernel's command line:
#   root=/dev/nbd0pN           the file system on that disk (or root=UUID=...)
#   sojourn.disk=URI[,URI...]  the export, at each of the servers that may have it: nbd://HOST[:PORT]/NAME
#   ip=                        the machine's address (dracut.cmdline(7))

# Where /etc/sojourn/diskless says that this system's root is such a disk, where this machine runs from one, and where
# it is asked for (add_dracutmodules).
check() {
    [[ -e /etc/sojourn/diskless ]] || grep -qs 'sojourn\.disk=' /proc/cmdline || return 255
}

depends() {
    echo network rootfs-block
}

installkernel() {
    instmods nbd
}

install() {
    inst /usr/lib/sojourn/sojourn-diskless /sojourn/diskless
    inst_hook cmdline 91 "$moddir/parse-sojourn.sh"
    inst_script "$moddir/sojournroot.sh" /sbin/sojournroot
    # Behind the end of dracut's DHCP client, which is at 10.
    inst_hook cleanup 90 "$moddir/keep-addresses.sh"
    inst_multiple ip
    # Certificates, for nbds://.
    inst_multiple -o /etc/pki/libnbd/{ca-cert,ca-crl,client-cert,client-key}.pem
    dracut_need_initqueue
}
