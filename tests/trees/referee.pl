# The first act of each command, which has the path of its tree in $TREES. It takes the locks of its
# tree, looks for earlier trees of which a process lives, and executes its words.
#
# All processes of a tree share the two locks, so the kernel says whether one of them lives. TREE.ses
# is that of all processes, TREE.ref that of the processes in the session of the command.
use strict;
use warnings;
use Fcntl ':flock';
use POSIX ();

# `owner MILLISECONDS RLOCK WORD…` is a process that holds a lock of its own by `rlock acquire --pid`.
my $lasts;
if ($ARGV[0] eq 'owner') {
    (undef, $lasts, my @acquire) = @ARGV;
    system(@acquire, '--pid', $$) == 0 or exit 1;
}

my $own = $ENV{TREES};
my @kept;
my $begun = (split ' ', text("/proc/$$/stat"))[21];
for (['ref', 9], ['ses', 8]) {
    my ($kind, $descriptor) = @$_;
    open my $file, '>>', "$own.$kind" or die "$own.$kind: $!";
    flock $file, LOCK_EX or die "$own.$kind: $!";
    # The judge reads when the command was started.
    syswrite $file, $begun;
    push @kept, $file;
    # Only the copy outlasts the exec. The processes below an owner hold nothing.
    defined $lasts or POSIX::dup2(fileno $file, $descriptor) or die "$descriptor: $!";
}

my ($folder, $number) = $own =~ m|(.*)/(\d+)$|;
for my $other (glob "$folder/*.ref $folder/*.ses") {
    my ($tree, $kind) = $other =~ m|/(\d+)\.(\w+)$|;
    next if $tree == $number;
    open my $file, '<', $other or die "$other: $!";
    next if flock $file, LOCK_SH | LOCK_NB;
    open my $report, '>>', "$own.overlap" or die "$own.overlap: $!";
    print $report "$tree $kind", (map { "; $_" } grep { /\S/ } living("$folder/$tree")), "\n";
}

if (defined $lasts) {
    system "sleep 0.2 &";
    select undef, undef, undef, $lasts / 1000;
    exit;
}
exec @ARGV or die "$ARGV[0]: $!";

# The processes of a tree, for people, with the locks that each has, and those that may be of it,
# since they are about to end and have no environment any more.
sub living {
    my ($mark) = @_;
    my @lines;
    for my $folder (glob '/proc/[0-9]*') {
        my @stat = split ' ', text("$folder/stat");
        my $environment = text("$folder/environ");
        my $is_ending = $environment eq '' && @stat > 3 && $stat[2] ne 'Z' && $stat[3] > 2;
        next unless $is_ending || $environment =~ /(^|\0)TREES=\Q$mark\E\0/;
        my @open = grep { -e "$folder/fd/$_" } 8, 9;
        push @lines, "@stat[0 .. 5] has @open of " . text("$folder/cmdline") =~ tr/\0/ /r;
    }
    return @lines;
}

sub text {
    open my $file, '<', $_[0] or return '';
    local $/;
    return <$file> // '';
}
