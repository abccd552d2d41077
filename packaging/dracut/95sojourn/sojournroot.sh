#!/bin/sh
# Makes the disk. Its keeper waits for a server for as long as it takes, and stays when the root is mounted.
command -v getarg >/dev/null || . /lib/dracut-lib.sh
[ ! -s /sys/block/nbd0/pid ] || exit 0
# It splits the kernel's command line itself, by what IFS says.
servers=$(getarg sojourn.disk=)
IFS=,
# shellcheck disable=SC2086
set -- $servers
unset IFS
/sojourn/diskless "$@" >/dev/null || die "The disk cannot be had"
