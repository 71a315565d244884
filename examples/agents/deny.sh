#!/bin/sh
# A hook that coding agents call before each command, with the call as JSON on standard input, such
# as PreToolUse of Claude Code. Exit 2 denies the call, and the agent reads the line.
call=$(cat)
case $call in
*'rlock '*) exit 0 ;;
*'cargo build'* | *'cargo test'* | *'make -j'* | *'npm test'* | *pytest*) ;;
*) exit 0 ;;
esac
echo "others share this machine: write 'rlock exec --slot heavy=2 -- COMMAND'; 'rlock help agents' says more" >&2
exit 2
