#!/bin/sh
# room.sh GIB LOAD: waits until so much memory is free and the load is lower. Jobs that take turns at
# looking, a second apart, do not all take the same room:
#
#   rlock exec --slot heavy=3 -c 'rlock exec --hold-at-least 1s room -- ./room.sh 4 8 && exec ./job'
until awk -v gib="$1" -v load="$2" '
    $1 == "MemAvailable:" { free = $2 / 1048576 }
    FILENAME ~ /loadavg$/ { now = $1 }
    END { exit free < gib || now >= load }' "${PROC:-/proc}/meminfo" "${PROC:-/proc}/loadavg"; do
    sleep 1
done
