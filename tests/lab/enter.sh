#!/bin/sh
# Runs a command on a host of a lab: enter.sh LAB HOST COMMAND...
#
# The command has the network, the name, /etc/hosts and /sys of that host, and finds its store by HOPLITE_SOCKET. Its process
# is the one that this script was.
set -e
lab=$1
host=$2
shift 2
export HOPLITE_SOCKET="/run/hoplite-lab/$lab/$host.sock"
# shellcheck disable=SC2016 # The inner shell expands these.
exec nsenter --net="/run/netns/$lab-$host" -- unshare --mount --uts -- sh -c '
    hostname "$1"
    mount --bind "/run/hoplite-lab/$0/hosts" /etc/hosts
    mount -t sysfs sysfs /sys
    cap="/run/hoplite-lab/$0/flow_cap.so"
    shift
    if [ -e "$cap" ]; then export LD_PRELOAD="$cap"; fi
    exec "$@"
' "$lab" "$host" "$@"
