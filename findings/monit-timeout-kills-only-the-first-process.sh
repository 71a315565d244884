#!/usr/bin/env bash
# monit 5.33.0 (Debian 12): check program NAME with path SCRIPT timeout 2 seconds.
# One would expect: at the limit monit ends the check with all that it has started, since it made a
# session of its own for it; first by TERM, as it stops services.
# What happens: the script gets KILL at once, and what it runs gets nothing and works on. monit says
# "Killing program" and starts the next round beside it, so a check that hangs for long is there
# many times, and a lock that the program inherited stays with the old ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill -KILL $(cat "$folder/pids") 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq monit=1:5.33.0-1 2>/dev/null
dpkg -x monit_*.deb .
await() { for _ in $(seq 400); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
cat >check <<END
#!/bin/sh
cd $folder
trap 'echo "the script gets TERM" >>log' TERM
sh work
echo "the script goes on" >>log
END
cat >work <<'END'
trap 'echo "the work gets TERM" >>log' TERM
echo $$ >>pids
for _ in $(seq 300); do sleep .1; done
END
chmod +x check
cat >monitrc <<END
set daemon 1
set log $folder/monit.log
set idfile $folder/id
set statefile $folder/state
set pidfile $folder/pid
check program job with path "$folder/check" timeout 2 seconds
  if status != 0 then alert
END
chmod 600 monitrc
usr/bin/monit -I -c monitrc >/dev/null 2>&1 & monit=$!
await sh -c '[ "$(cat pids 2>/dev/null | wc -l)" = 3 ]'
kill -TERM $monit
wait $monit || true
sleep 1
grep -c "Killing program" monit.log | sed 's/$/ times killed/' >>log
for pid in $(cat pids); do ! kill -0 "$pid" || echo "a work is there" >>log; done
cat log
[ "$(cat log)" = "2 times killed
a work is there
a work is there
a work is there" ]
