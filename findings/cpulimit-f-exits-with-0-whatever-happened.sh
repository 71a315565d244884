#!/usr/bin/env bash
# cpulimit 2.8 (Debian 12): cpulimit -f -l 50 -- COMMAND limits COMMAND and waits for it.
# One would expect: like nice, timeout and env, it exits with the status of the command. At TERM it
# ends the command, or its exit status says that it was stopped.
# What happens: cpulimit exits with 0 if the command has failed, if the command was killed, and at
# TERM. At TERM the command runs on without a signal and without its limit.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill -KILL "$(cat "$folder/pid")" 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq cpulimit=2.8-1 2>/dev/null
dpkg -x cpulimit_*.deb .
await() { for _ in $(seq 400); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
run() { usr/bin/cpulimit -f -q -l 50 -- "$@" >/dev/null 2>&1; }
# CPUlimit looks for its target after it has started it, so the target has to live for a moment.
run sh -c 'sleep .5; exit 3' && echo "the command exits with 3: cpulimit with 0" >>log
run sh -c 'sleep .5; kill -KILL $$' && echo "the command is killed: cpulimit exits with 0" >>log

cat >command <<'END'
trap 'echo "the command gets TERM" >>log' TERM
echo $$ >pid
for _ in $(seq 20); do sleep .1; done
echo "the command ends" >>log
END
usr/bin/cpulimit -f -q -l 50 -- sh command >/dev/null 2>&1 & limiter=$!
await test -s pid
sleep .3
kill -TERM $limiter
wait $limiter && echo "TERM: cpulimit exits with 0" >>log || echo "TERM: cpulimit exits with $?" >>log
await grep -q "command ends" log
cat log
[ "$(cat log)" = "the command exits with 3: cpulimit with 0
the command is killed: cpulimit exits with 0
TERM: cpulimit exits with 0
the command ends" ]
