#!/bin/sh
# Stands in for ssh within the lab that HOPLITE_LAB names: rsh.sh [-OPTION]... HOST COMMAND...
set -e
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec "$(dirname "$0")/enter.sh" "$HOPLITE_LAB" "$host" sh -c "$*"
