#!/usr/bin/env bash
# env of uutils 0.0.30 (rust-coreutils of Debian 13), against env of GNU.
# One would expect: "env NAME=value COMMAND" becomes COMMAND, so a signal to the process that was
# started reaches COMMAND, as do nice and nohup of the same package. Scripts begin with
# "/usr/bin/env bash".
# What happens: this env starts COMMAND beside itself and waits. TERM, HUP or KILL end env alone,
# with the status of a command that was stopped, and COMMAND runs on without a signal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# The archive of this machine's packages has Debian 13, too. The program needs the C library of it.
archive=$(grep -hoE '^URIs: .*/debian/?$' /etc/apt/sources.list.d/*.sources | head -1)
printf 'Types: deb\n%s\nSuites: trixie\nComponents: main\n' "$archive" >trixie.sources
echo "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" >>trixie.sources
mkdir -p lists/partial cache/archives/partial
from13() {
    apt-get -qq -o Dir::Etc::SourceList="$folder/trixie.sources" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::lists="$folder/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$folder/cache" \
        -o APT::Sandbox::User=root "$@" 2>/dev/null
}
from13 update
from13 download rust-coreutils=0.0.30-2 libc6 libgcc-s1 libselinux1 libpcre2-8-0
for package in *.deb; do dpkg -x "$package" .; done
libraries=$folder/usr/lib/$(uname -m)-linux-gnu
uutils="$(echo "$libraries"/ld-linux-*) --library-path $libraries $folder/usr/bin/coreutils"
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
cat >command <<'END'
trap 'echo "the command gets TERM" >>log; exit 143' TERM
: >begun; for _ in $(seq 20); do sleep .1; done
echo "the command ends" >>log
END
run() { # NAME COMMAND...
    echo "$1:" >>log
    "${@:2}" sh command 2>/dev/null & started=$!
    await test -e begun
    rm begun
    kill -TERM $started
    wait $started || echo "exit status $?" >>log
    await sh -c 'tail -2 log | grep -q "the command"'
}

run "GNU env" env NAME=value
run "uutils nice" $uutils nice -n 1
run "uutils env" $uutils env NAME=value
cat log
[ "$(cat log)" = "GNU env:
the command gets TERM
exit status 143
uutils nice:
the command gets TERM
exit status 143
uutils env:
exit status 143
the command ends" ]
