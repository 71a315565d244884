#!/usr/bin/env bash
# turbo 2.11.11 (npm), a runner of the scripts of package.json.
# One would expect: a "turbo run deploy" that is stopped by TERM exits with 143, or with the status
# of the script, which did not finish.
# What happens: turbo sends INT to the script, waits for it, and exits with 0, though the script
# exits with 5. Without TERM turbo exits with 5. So who stopped it, or started it (cron, CI, a lock
# program), takes the broken deploy for a success.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . turbo@2.11.11
export PATH=$folder/node_modules/.bin:$PATH TURBO_TELEMETRY_DISABLED=1 CI=1
await() { for _ in $(seq 400); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
mkdir project
cd project
cat >package.json <<'END'
{ "name": "p", "private": true, "packageManager": "npm@11.0.0",
  "scripts": { "fails": "exit 5", "deploy": "sh deploy.sh" } }
END
echo '{ "lockfileVersion": 3, "packages": {} }' >package-lock.json
echo '{ "tasks": { "fails": { "cache": false }, "deploy": { "cache": false } } }' >turbo.json
cat >deploy.sh <<'END'
for signal in TERM INT HUP; do trap "echo 'the script gets $signal and exits with 5' >>log; exit 5" $signal; done
: >begun; for _ in $(seq 200); do sleep .1; done
END

turbo run fails >/dev/null 2>&1 </dev/null || echo "a script that exits with 5: turbo exits with $?" >>log
turbo run deploy >/dev/null 2>&1 </dev/null & turbo=$!
await test -e begun
kill -TERM $turbo
wait $turbo && echo "TERM: turbo exits with 0" >>log || echo "TERM: turbo exits with $?" >>log
cat log
[ "$(cat log)" = "a script that exits with 5: turbo exits with 5
the script gets INT and exits with 5
TERM: turbo exits with 0" ]
