#!/usr/bin/env bash
# nushell 0.115.1 (npm), a script whose external command dies of a signal.
# One would expect: nu stops the script, and exits with 137 for KILL and 143 for TERM, as other
# shells and env, timeout and sudo do, so that its caller sees a signal.
# What happens: nu stops the script, but exits with 256 - N: 247 for KILL, 241 for TERM.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . nushell@0.115.1
export HOME=$folder
for end in 'exit 3' 'kill -KILL $$' 'kill -TERM $$' 'kill -HUP $$'; do
    printf "^sh -c '%s'\nprint 'the script goes on'\n" "$end" >script.nu
    node_modules/.bin/nu -n script.nu >>log 2>/dev/null && status=0 || status=$?
    echo "$end: nu exits with $status" >>log
done
cat log
[ "$(cat log)" = 'exit 3: nu exits with 3
kill -KILL $$: nu exits with 247
kill -TERM $$: nu exits with 241
kill -HUP $$: nu exits with 255' ]
