#!/bin/sh
# A script that holds a lock while it runs, however it is started.
set -eu

# Without the lock, the script starts itself again under rlock, which waits at most five minutes.
# As `sh nightly.sh`, $0 has no slash, so rlock would look for it in PATH: hence the sh.
rlock held nightly 2>/dev/null || exec rlock exec -w 5m nightly -- sh "$0" "$@"

echo "collecting"

# From here on the script only reads: it lets other readers of 'nightly' in, but no writer.
rlock downgrade read

echo "reporting"
