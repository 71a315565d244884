#!/usr/bin/env php
<?php // Runs a command under a lock of rlock serve: client.php HOST PORT KEY COMMAND [ARG]...
[, $host, $port, $key] = $argv;
$server = fsockopen($host, (int) $port) or exit(75);
stream_set_timeout($server, -1) && fwrite($server, "LOCK $key\n"); // -1: wait for ever
$answer = trim(fgets($server)) ?: 'the server is gone'; // fgets keeps the end of the line
if (strtok($answer, ' ') !== 'ok') { fwrite(STDERR, "client.php: not locked: $answer\n"); exit(75); }
// The command inherits the connection, so a killed client leaves the lock to its command.
$work = proc_open(['setsid', ...array_slice($argv, 4)], [3 => ['pipe', 'w'], 4 => $server], $pipes);
$ready = [$server, $pipes[3]]; // The end of the command ends the pipe.
$none = null; stream_select($ready, $none, $none, null);
if (!in_array($server, $ready, true)) fwrite($server, "UNLOCK\n");
if (($answer = trim(fgets($server)) ?: 'the server is gone') === 'ok') exit(proc_close($work));
fwrite(STDERR, "client.php: stopped: $answer\n");
posix_kill(-proc_get_status($work)['pid'], SIGTERM); exit(76);
