# `chain.pl LINKS PAUSE GROUPS`: a process forks another one and ends at once, LINKS times, with a pause
# of so many seconds. With GROUPS, each has a process group of its own.
use strict;
use warnings;

my ($links, $pause, $groups) = @ARGV;
for (1 .. $links) {
    my $child = fork;
    exit if !defined $child or $child;
    setpgrp if $groups;
    select undef, undef, undef, $pause if $pause > 0;
}
