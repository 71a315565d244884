#!/bin/sh
# A script that holds a lock while it runs, however it is started.
set -eu

# Without the lock, the script starts itself again under rlock, which waits at most five minutes.
rlock held nightly || exec rlock exec -w 5m nightly -- "$0" "$@"

echo "collecting"

# From here on the script only reads: it lets other readers of 'nightly' in, but no writer.
rlock downgrade read

echo "reporting"
