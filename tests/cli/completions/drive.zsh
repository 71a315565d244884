# Types each of its arguments and Tab into a shell on a pseudo-terminal, and prints the line that
# results.
export FPATH=$SCRIPTS:$FPATH TERM=dumb
zmodload zsh/zpty
zpty shell zsh -f -i
# The quotes within `re""ady` and `@@""` tell the output from the echo of this line.
zpty -w shell 'PS1=; autoload -Uz compinit; compinit -u -D
report() { zle -I; print -r -- "@@""$BUFFER""@@"; BUFFER=; }; zle -N report; bindkey "^X" report; print re""ady'
zpty -r shell output '*ready*'
for line; do
    zpty -w -n shell "$line"$'\t\x18'
    zpty -r shell output '*@@rlock*@@*'
    output=${output##*@@rlock}
    print -r -- "rlock${output%%@@*}|"
done
zpty -d shell
