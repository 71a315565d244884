# The script of clap_complete follows these functions, as _rlock_static. They add the names of live
# resources where a KEY stands, and the shell's own completion of commands after `--`.

_rlock_jobs() {
    local rlock_names=--names=jobs
    _rlock_names "$@"
}

# Completes the names in the store that the words select, or those of jobs.
_rlock_names() {
    local word option
    local -a run=(rlock inspect --names) names
    # These look back, too.
    if [[ -n $rlock_names || -n ${(M)rlock_words:#(history|inspect)} ]]; then
        run=(rlock history ${rlock_names:---names})
    fi
    for word in "${(@Q)rlock_words}"; do
        if [[ -n $option ]]; then
            run+=("$option=$word")
            option=
        else
            case $word in
                (--) break ;;
                (--store|--namespace) option=$word ;;
                (--store=*|--namespace=*) run+=("$word") ;;
            esac
        fi
    done
    (( $+commands[timeout] )) && run=(timeout 0.3 "${run[@]}")
    names=("${(@f)$("${run[@]}" 2>/dev/null </dev/null)}")
    compadd "$@" -a names
}

_rlock() {
    # _arguments shortens `words`.
    local -a rlock_words=("${(@)words[2,CURRENT-1]}")
    integer dashes=${words[(i)--]}
    if (( dashes < CURRENT )) && [[ -n ${words[(r)@COMMANDS@]} ]]; then
        words=("${(@)words[dashes+1,-1]}")
        (( CURRENT -= dashes ))
        _normal
    else
        _rlock_static "$@"
    fi
}

