#!/usr/bin/env bash
# dotenv-cli 11.0.0 (npm): dotenv -- COMMAND runs a command with the variables of .env.
# One would expect: if COMMAND dies of a signal, dotenv exits with 128 + N, as sh and env-cmd do, or
# at least with an error.
# What happens: it does so for KILL. If COMMAND dies of TERM or INT, dotenv exits with 0. So a job
# that its supervisor, a time limit or Ctrl-C has stopped counts as done.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . dotenv-cli@11.0.0
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
echo NAME=value >.env
run() { node_modules/.bin/dotenv -- "$@" 2>/dev/null && status=0 || status=$?; }

run sh -c 'exit 3'
echo "the command exits with 3: $status" >>log
for signal in KILL TERM INT; do
    run sh -c "kill -$signal \$\$"
    echo "the command dies of $signal: $status" >>log
done
node_modules/.bin/dotenv -- sh -c ': >begun; exec sleep 60' & dotenv=$!
await test -e begun
kill -TERM $dotenv
wait $dotenv && status=0 || status=$?
echo "dotenv gets TERM and passes it on: $status" >>log
cat log
[ "$(cat log)" = "the command exits with 3: 3
the command dies of KILL: 137
the command dies of TERM: 0
the command dies of INT: 0
dotenv gets TERM and passes it on: 0" ]
