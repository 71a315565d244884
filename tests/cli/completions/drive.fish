# Completes each of its arguments, and prints the line or the lines that result.
source $SCRIPTS/rlock.fish
for line in $argv
    set -l found (complete -C"$line" | string replace -r '\t.*' '')
    set -q found[1]; or set found (string match -r '[^ ]*$' -- $line)
    string join '' -- (string replace -r '[^ ]*$' '' -- $line)$found'|'
end
true
