#!/bin/sh
# Works through the rows from $1 to $2, and locks only those that are left: `rows.sh 100 200` and
# `rows.sh 300 400` run side by side.
set -eu

[ "$1" = --locked ] || exec rlock range-write rows "$1" "$2" -- "$0" --locked "$@"
shift

row=$1
while [ "$row" -lt "$2" ]; do
    echo "row $row"
    row=$((row + 1))
    # Others may have the rows that are done.
    rlock shrink "$row" "$2"
done
echo "row $row"
