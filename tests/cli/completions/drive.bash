# Completes each of its arguments as readline would, and prints the line or the lines that result.
. "$BASH_COMPLETION"
. "$SCRIPTS/rlock.bash"
# The builtin works only where readline calls.
compopt() { :; }
for line; do
    spaced=${line//:/ : }
    read -ra COMP_WORDS <<<"${spaced//=/ = }"
    [[ $line == *' ' ]] && COMP_WORDS+=('')
    COMP_LINE=$line COMP_POINT=${#line} COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _rlock rlock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    [[ ${COMPREPLY[*]} ]] || COMPREPLY=("${line##*[ :=]}")
    printf '%s|' "${COMPREPLY[@]/#/"${line%"${line##*[ :=]}"}"}"
    echo
done
