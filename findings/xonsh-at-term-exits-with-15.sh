#!/usr/bin/env bash
# xonsh 0.25.0 (PyPI), a shell; here it runs a script without a terminal.
# One would expect: TERM ends xonsh as it ends sh and bash: its parent sees the signal, or 143.
# What happens: xonsh catches TERM and exits with 15, the bare number of the signal, which looks
# like an exit code of the script. The running command gets no signal and works on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
pip install -q --no-deps --target packages xonsh==0.25.0 2>/dev/null
export PYTHONPATH=$folder/packages HOME=$folder
await() { for _ in $(seq 400); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
cat >command <<'END'
trap 'echo "the command gets TERM" >>log' TERM
: >begun; for _ in $(seq 20); do sleep .1; done
echo "the command ends" >>log
END
printf 'sh command\necho "the script goes on" >>log\n' >script
run() { # NAME COMMAND...
    "${@:2}" script 2>/dev/null & shell=$!
    await test -e begun
    rm begun
    kill -TERM $shell
    wait $shell 2>/dev/null || echo "$1 exits with $?" >>log
    await sh -c 'tail -1 log | grep -q "command ends"'
}

run bash bash --norc
run xonsh python3 -m xonsh --no-rc
cat log
[ "$(cat log)" = "bash exits with 143
the command ends
xonsh exits with 15
the command ends" ]
