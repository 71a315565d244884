#!/usr/bin/env perl
# Runs a command under a lock of rlock serve: client.pl HOST PORT KEY COMMAND [ARG]...
use strict; use warnings; use IO::Socket::INET;
my ($host, $port, $key, @command) = @ARGV;
my $server = IO::Socket::INET->new("$host:$port") or warn("client.pl: $host:$port: $@\n"), exit 75;
print $server "LOCK $key\n";
my $answer = <$server> // "the server is gone\n";
if ($answer !~ /^ok\b/) { warn "client.pl: not locked: $answer"; exit 75 }
defined(my $work = fork) or die "client.pl: fork: $!\n";
# This process has the connection, so a killed parent leaves the lock to the command.
if (!$work) { setpgrp; my $code = system(@command) >> 8; print $server "UNLOCK\n"; exit $code }
$answer = <$server> // "the server is gone\n";
if ($answer eq "ok\n") { waitpid $work, 0; exit $? >> 8 }
warn "client.pl: stopped: $answer";
kill TERM => -$work; exit 76;
