
# The script of clap_complete precedes these functions. They add the names of live resources where a
# KEY stands, and the shell's own completion of commands after `--`.

# Prints how many KEYs a subcommand takes, then its options that take a value, each as often as it
# takes one. `--` stands for the command.
function __fish_rlock_grammar
    switch $argv[1]
@GRAMMAR@
    end
end

# Prints "key" if a KEY stands at the cursor, and "command" after `--`.
function __fish_rlock_position
    set -l values 0
    set -l keys 0
    set -l subcommand
    set -l grammar 0 --store --namespace
    set -l words (commandline -opc)
    set -e words[1]
    for word in $words
        if test $values -gt 0
            set values (math $values - 1)
            continue
        end
        switch $word
            case --
                if contains -- -- $grammar
                    echo command
                    return
                end
            case '-*'
                set values (count (string match -- $word $grammar))
            case '*'
                if set -q subcommand[1]
                    set keys (math $keys + 1)
                else
                    set subcommand $word
                    set grammar (string split ' ' (__fish_rlock_grammar $word))
                end
        end
    end
    if set -q grammar[1]; and test $values -eq 0 -a $keys -lt $grammar[1]
        echo key
    end
end

# Prints the names in the store that the words select, of jobs with --names=jobs as $argv[2]. Each
# name gets the suffix $argv[1].
function __fish_rlock_names
    set -l run rlock inspect --names
    set -l option
    set -l words (commandline -opc)
    set -e words[1]
    # These look back, too.
    if set -q argv[2]
        set run rlock history $argv[2]
    else if contains -- history $words; or contains -- inspect $words
        set run rlock history --names
    end
    for word in $words
        if set -q option[1]
            set -a run $option=$word
            set -e option[1]
        else
            switch $word
                case --
                    break
                case --store --namespace
                    set option $word
                case '--store=*' '--namespace=*'
                    set -a run $word
            end
        end
    end
    command -q timeout; and set -p run timeout 0.3
    for name in (command $run 2>/dev/null </dev/null)
        echo "$name$argv[1]"
    end
end

# Completes the words after `--` as the shell completes a command.
function __fish_rlock_command
    set -l words (commandline -opc) (commandline -ct)
    set -l rest $words[(math (contains -i -- -- $words) + 1)..-1]
    complete -C "$rest"
end

complete -c rlock -f
complete -c rlock -n "__fish_rlock_position | string match -q key" -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_position | string match -q command" -f -a "(__fish_rlock_command)"
