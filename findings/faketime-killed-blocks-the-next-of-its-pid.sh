#!/usr/bin/env bash
# faketime 0.9.10 (Debian 12) as the first process of a container, where its pid is always 1.
# One would expect: a faketime that is killed leaves nothing, or something that the next one takes
# over, since no process of it is left.
# What happens: it keeps its clock in /dev/shm by the number of its process. Only faketime itself
# removes that. After a KILL the next faketime with that number does not start its command, in this
# container or in any other one that shares /dev/shm.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq faketime=0.9.10-2.1 2>/dev/null
dpkg -x faketime_*.deb .
cat >shared <<'EOF'
mount -t tmpfs tmpfs /dev/shm
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
run() { unshare --pid --fork --kill-child usr/bin/faketime -f +0 sh -c "$1" 2>>errors; }
run 'echo "the first one runs" >>log'
run 'echo "the second one runs, since the first one has ended" >>log'
run 'echo "the third one runs, and is killed" >>log; >up; sleep 60' & third=$!
await test -e up
kill -KILL $third
wait $third 2>/dev/null
run 'echo "the fourth one runs" >>log' || echo "the fourth one exits with $?" >>log
EOF
unshare --user --map-root-user --mount sh shared
grep sem_open: errors >>log || true
cat log
[ "$(cat log)" = "the first one runs
the second one runs, since the first one has ended
the third one runs, and is killed
the fourth one exits with 1
faketime: sem_open: File exists" ]
