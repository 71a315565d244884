#!/bin/sh
# Runs a command under a lock of rlock serve, by BusyBox: client.sh HOST PORT KEY COMMAND [ARG]...
host=$1 port=$2 key=$3 && shift 3
fifos=$(mktemp -d) && mkfifo "$fifos/to" "$fifos/from" || exit 75
busybox nc "$host" "$port" <"$fifos/to" >"$fifos/from" &
exec 3>"$fifos/to" 4<"$fifos/from" && rm -r "$fifos"
(trap '' PIPE && echo "LOCK $key" >&3) 2>/dev/null
read -r answer <&4
[ "${answer%% *}" = ok ] || { echo "client.sh: not locked: ${answer:-the server is gone}" >&2; exit 75; }
# The command gets a process group of its own. It inherits descriptor 3,
# so a killed client leaves the lock to its command.
busybox setsid sh -c '"$@"; code=$?; echo UNLOCK >&3; exit $code' sh "$@" &
if read -r answer <&4 && [ "$answer" = ok ]; then wait $!; exit; fi
echo "client.sh: stopped: ${answer:-the server is gone}" >&2
kill -- -$!; exit 76
