#!/bin/sh
# A script that holds a lock while it runs, however it is started.
set -eu

# The first time, the script starts itself again under rlock, which waits at most five minutes.
[ "${LOCKED_BY-}" = "$0" ] || exec env LOCKED_BY="$0" rlock exec -w 5m nightly -- "$0" "$@"

echo "collecting"

# From here on the script only reads: it lets other readers of 'nightly' in, but no writer.
rlock downgrade read

echo "reporting"
