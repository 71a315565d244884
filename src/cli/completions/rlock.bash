# The script of clap_complete follows these functions, as _rlock_static. They add the names of live
# resources where a KEY stands, and the shell's own completion of commands after `--`.

# Prints how many KEYs a subcommand takes, then its options that take a value, each as often as it
# takes one. `--` stands for the command. Nothing follows a word that is no subcommand.
_rlock_grammar() {
    case $1 in
@GRAMMAR@
        *) echo -1 ;;
    esac
}

# Completes the names in the store that the words select, of jobs with --names=jobs as $2. Each name
# gets the suffix $1.
_rlock_names() {
    local name option= run=(rlock inspect --names) prefix=
    # These look back, too.
    [[ $subcommand == history || $subcommand == inspect || ${2-} ]] && run=(rlock history "${2:---names}")
    for name in "${words[@]:1:last-1}"; do
        # Nothing here may run what the user has typed, so quotes are removed and no more.
        name=${name//[\"\'\\]/}
        if [[ $option ]]; then
            run+=("$option=$name")
            option=
        else
            case $name in
                --) break ;;
                --store | --namespace) option=$name ;;
                --store=* | --namespace=*) run+=("$name") ;;
            esac
        fi
    done
    type -P timeout >/dev/null && run=(timeout 0.3 "${run[@]}")
    # readline replaces only what follows the last of these characters.
    local breaks=${COMP_WORDBREAKS//[!:=]/}
    [[ $breaks ]] && prefix=${cur%"${cur##*[$breaks]}"}
    COMPREPLY=()
    while IFS= read -r name; do
        printf -v name %q "$name"
        [[ $name == "$cur"* ]] && COMPREPLY+=("${name#"$prefix"}$1")
    done < <("${run[@]}" 2>/dev/null </dev/null)
    # A KEY is no file.
    compopt +o default +o bashdefault ${1:+-o nospace} 2>/dev/null
}

# Completes the value $cur of the option $previous.
_rlock_value() {
    case $previous in
        --slot) _rlock_names = ;;
        --job) _rlock_names '' --names=jobs ;;
        @KEY_OPTIONS@) _rlock_names ;;
        *) _rlock_static "$1" "$cur" "$previous" ;;
    esac
}

_rlock() {
    # Joins the words that readline has divided at ':' and '='.
    local words=() word line=${COMP_LINE:0:COMP_POINT}
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#words[@]} == 0 || $line == [[:space:]]* || ! $line ]]; then
            words+=("$word")
        else
            words[${#words[@]}-1]+=$word
        fi
        line=${line#"${line%%[![:space:]]*}"}
        line=${line#"$word"}
    done

    local last=$((${#words[@]} - 1)) subcommand= grammar='0 --store --namespace' option
    local cur=${words[last]} previous= values=0 keys=0
    COMPREPLY=()
    for word in "${words[@]:1:last-1}"; do
        if ((values > 0)); then
            values=$((values - 1)) previous=
            continue
        fi
        case $word in
            --)
                if [[ " $grammar " == *' -- '* ]]; then
                    _rlock_command
                    return
                fi
                ;;
            -*)
                previous=$word
                for option in $grammar; do
                    [[ $option == "$word" ]] && values=$((values + 1))
                done
                ;;
            *)
                if [[ $subcommand ]]; then
                    keys=$((keys + 1))
                else
                    subcommand=$word grammar=$(_rlock_grammar "$word")
                fi
                ;;
        esac
    done

    if ((values > 0)); then
        # The second value of an option is an interval, which nothing completes.
        [[ $previous ]] && _rlock_value "$1"
    elif [[ $cur == --*=* ]]; then
        previous=${cur%%=*} cur=${cur#*=}
        _rlock_value "$1"
    elif [[ $cur != -* ]] && ((keys < ${grammar%% *})); then
        _rlock_names
    elif ((${grammar%% *} >= 0)); then
        _rlock_static "$1" "$cur" "${words[last-1]}"
    fi
}

# Completes the words after `--` as the shell completes a command.
_rlock_command() {
    local i=1
    while [[ ${COMP_WORDS[i]} != -- ]]; do
        i=$((i + 1))
    done
    i=$((i + 1))
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$i"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$i"
    elif ((COMP_CWORD == i)); then
        COMPREPLY=($(compgen -c -- "$cur"))
    fi
}

