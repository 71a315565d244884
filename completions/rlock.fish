# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_rlock_global_optspecs
    string join \n store= namespace= h/help V/version
end

function __fish_rlock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_rlock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_rlock_using_subcommand
    set -l cmd (__fish_rlock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c rlock -n "__fish_rlock_needs_command" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_needs_command" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_needs_command" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_needs_command" -s V -l version -d 'Print version'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "exec" -d 'Run a command while holding locks on whole resources'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "range-read" -d 'Run a command while holding a read lock on an interval'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "range-prewrite" -d 'Run a command while holding a prewrite lock on an interval'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "range-write" -d 'Run a command while holding a write lock on an interval'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "acquire" -d 'Acquire a lock that lasts for a time, or as long as a process'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "renew" -d 'Let a lock of rlock acquire last longer'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "release" -d 'Give back a lock of rlock acquire'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "held" -d 'Tell by the exit status whether this runs below a lock'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "inspect" -d 'Show who holds what and who waits'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "doctor" -d 'Check the store, and say what to do'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "history" -d 'Show what ran under a lock, when, and how it ended'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "cleanup" -d 'Remove what is expired or dead'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "break" -d 'Have the commands of live locks stopped, and their locks freed'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "shrink" -d 'Inside a hold: give up part of the interval'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "downgrade" -d 'Inside a hold: lower its mode'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "serve" -d 'Serve locks to any program that speaks lines'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "completions" -d 'Print a completion script for a shell'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "man" -d 'Show a man page, or write them all'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l read -d 'Lock KEY for reading, beside other readers' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l prewrite -d 'Lock KEY for reading now and writing later, beside readers only' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l write -d 'Lock KEY for writing, alone, as a bare KEY does' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l slot -d 'Take one of the N slots of KEY; W with KEY=N:W' -r -f -a "(__fish_rlock_names =)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l path -d 'Lock the file or folder P, and all that is in it, for writing' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l path-read -d 'Lock the file or folder P, and all that is in it, for reading' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l range-read -d 'Lock an interval of KEY, such as \'[1.2,1.8)\', for reading' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l range-prewrite -d 'Lock an interval of KEY for reading now and writing later' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l range-write -d 'Lock an interval of KEY for writing' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -s w -l wait -d 'Wait at most DUR [default: RLOCK_WAIT or ever]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l max-waiting -d 'Exit with 75 at once if N requests already wait; 0 as -n' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l place -d 'Keep the place in the queue for 15m, for the next request with NAME' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l deadlock-timeout -d 'Time after which a nested wait looks for a deadlock; 0: never' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -s E -l conflict-exit-code -d 'Exit with N when busy' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l ttl -d 'Length of the lease at a server [default: RLOCK_TTL, else 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l grace -d 'Time from TERM to KILL when the lock is lost [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l connect-timeout -d 'Time in which a server has to be reached [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l replicas -d 'Number of replicas [with disks] that must have the lock before COMMAND starts [default: 0]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l history -d 'Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l owner -d 'The person or system that this is for [default: RLOCK_OWNER]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l reason -d 'The reason for this, for others to read [default: RLOCK_REASON]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l title -d 'What others see in place of COMMAND and its arguments' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l min-memory -d 'Start COMMAND only when so much memory is free, such as 4G' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l max-load -d 'Start COMMAND only when the load, or with N% the pressure, is at most N' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l meanwhile -d 'Run STRING by /bin/sh once: beside the wait, or after the release' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l else -d 'Run STRING by /bin/sh when busy; RLOCK_BUSY says why, "$@" is COMMAND' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l skip-ok -d 'Exit with 0 when busy, for at most DUR in a row' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l once-per -d 'Exit with 0 if a run succeeded within DUR, in this hour, day, week, month, year, or ever' -r -f -a "hour\t''
day\t''
week\t''
month\t''
year\t''
ever\t''"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l success-codes -d 'Count these exit codes as a success, too' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l hold-at-least -d 'Hold the lock for at least DUR, even if COMMAND ends sooner' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l max-runtime -d 'Stop COMMAND after DUR, and exit with 124' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l pid -d 'End the wait or COMMAND when PID, \'parent\' or \'agent\' ends' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l splay -d 'Sleep for a random part of DUR before the request' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l remember -d 'Remember this run and those before for DUR, up to 400d [default: 7d]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l status-file -d 'Write to FILE how the request and COMMAND ended, as JSON' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand exec" -s c -l shell -d 'Run STRING by /bin/sh instead of COMMAND' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l job -d 'Name of the job for --supersede, --skip-ok=DUR, --once-per [default: user and COMMAND]' -r -f -a "(__fish_rlock_names '' --names=jobs)"
complete -c rlock -n "__fish_rlock_using_subcommand exec" -s n -l no-wait -d 'Exit with 75 at once if the lock is busy'
complete -c rlock -n "__fish_rlock_using_subcommand exec" -s q -l quiet -d 'Print nothing when busy'
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l no-default-store -d 'Fail unless --store, RLOCK_STORE or /etc/rlock.conf names the store'
complete -c rlock -n "__fish_rlock_using_subcommand exec" -s v -l verbose -d 'Say what is done, and why a run was skipped'
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l supersede -d 'End the waiting requests of the same job, as busy: the newest one wins'
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l until-ready -d 'Release the lock once COMMAND says READY=1, as sd_notify does'
complete -c rlock -n "__fish_rlock_using_subcommand exec" -l nested -d 'Run nothing unless a lock around this command covers the claims'
complete -c rlock -n "__fish_rlock_using_subcommand exec" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -s w -l wait -d 'Wait at most DUR [default: RLOCK_WAIT or ever]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l max-waiting -d 'Exit with 75 at once if N requests already wait; 0 as -n' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l place -d 'Keep the place in the queue for 15m, for the next request with NAME' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l deadlock-timeout -d 'Time after which a nested wait looks for a deadlock; 0: never' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -s E -l conflict-exit-code -d 'Exit with N when busy' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l ttl -d 'Length of the lease at a server [default: RLOCK_TTL, else 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l grace -d 'Time from TERM to KILL when the lock is lost [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l connect-timeout -d 'Time in which a server has to be reached [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l replicas -d 'Number of replicas [with disks] that must have the lock before COMMAND starts [default: 0]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l history -d 'Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l owner -d 'The person or system that this is for [default: RLOCK_OWNER]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l reason -d 'The reason for this, for others to read [default: RLOCK_REASON]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l title -d 'What others see in place of COMMAND and its arguments' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l min-memory -d 'Start COMMAND only when so much memory is free, such as 4G' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l max-load -d 'Start COMMAND only when the load, or with N% the pressure, is at most N' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l meanwhile -d 'Run STRING by /bin/sh once: beside the wait, or after the release' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l else -d 'Run STRING by /bin/sh when busy; RLOCK_BUSY says why, "$@" is COMMAND' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l skip-ok -d 'Exit with 0 when busy, for at most DUR in a row' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l success-codes -d 'Count these exit codes as a success, too' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l hold-at-least -d 'Hold the lock for at least DUR, even if COMMAND ends sooner' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l max-runtime -d 'Stop COMMAND after DUR, and exit with 124' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l pid -d 'End the wait or COMMAND when PID, \'parent\' or \'agent\' ends' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l splay -d 'Sleep for a random part of DUR before the request' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l remember -d 'Remember this run and those before for DUR, up to 400d [default: 7d]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l status-file -d 'Write to FILE how the request and COMMAND ended, as JSON' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -s c -l shell -d 'Run STRING by /bin/sh instead of COMMAND' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l once-per -d 'Exit with 0 if a run succeeded within DUR, in this hour, day, week, month, year, or ever' -r -f -a "hour\t''
day\t''
week\t''
month\t''
year\t''
ever\t''"
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l job -d 'Name of the job for --supersede, --skip-ok=DUR, --once-per [default: user and COMMAND]' -r -f -a "(__fish_rlock_names '' --names=jobs)"
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -s n -l no-wait -d 'Exit with 75 at once if the lock is busy'
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -s q -l quiet -d 'Print nothing when busy'
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l no-default-store -d 'Fail unless --store, RLOCK_STORE or /etc/rlock.conf names the store'
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -s v -l verbose -d 'Say what is done, and why a run was skipped'
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l supersede -d 'End the waiting requests of the same job, as busy: the newest one wins'
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l until-ready -d 'Release the lock once COMMAND says READY=1, as sd_notify does'
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -l nested -d 'Run nothing unless a lock around this command covers the claims'
complete -c rlock -n "__fish_rlock_using_subcommand range-read" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -s w -l wait -d 'Wait at most DUR [default: RLOCK_WAIT or ever]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l max-waiting -d 'Exit with 75 at once if N requests already wait; 0 as -n' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l place -d 'Keep the place in the queue for 15m, for the next request with NAME' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l deadlock-timeout -d 'Time after which a nested wait looks for a deadlock; 0: never' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -s E -l conflict-exit-code -d 'Exit with N when busy' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l ttl -d 'Length of the lease at a server [default: RLOCK_TTL, else 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l grace -d 'Time from TERM to KILL when the lock is lost [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l connect-timeout -d 'Time in which a server has to be reached [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l replicas -d 'Number of replicas [with disks] that must have the lock before COMMAND starts [default: 0]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l history -d 'Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l owner -d 'The person or system that this is for [default: RLOCK_OWNER]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l reason -d 'The reason for this, for others to read [default: RLOCK_REASON]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l title -d 'What others see in place of COMMAND and its arguments' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l min-memory -d 'Start COMMAND only when so much memory is free, such as 4G' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l max-load -d 'Start COMMAND only when the load, or with N% the pressure, is at most N' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l meanwhile -d 'Run STRING by /bin/sh once: beside the wait, or after the release' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l else -d 'Run STRING by /bin/sh when busy; RLOCK_BUSY says why, "$@" is COMMAND' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l skip-ok -d 'Exit with 0 when busy, for at most DUR in a row' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l success-codes -d 'Count these exit codes as a success, too' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l hold-at-least -d 'Hold the lock for at least DUR, even if COMMAND ends sooner' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l max-runtime -d 'Stop COMMAND after DUR, and exit with 124' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l pid -d 'End the wait or COMMAND when PID, \'parent\' or \'agent\' ends' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l splay -d 'Sleep for a random part of DUR before the request' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l remember -d 'Remember this run and those before for DUR, up to 400d [default: 7d]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l status-file -d 'Write to FILE how the request and COMMAND ended, as JSON' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -s c -l shell -d 'Run STRING by /bin/sh instead of COMMAND' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l once-per -d 'Exit with 0 if a run succeeded within DUR, in this hour, day, week, month, year, or ever' -r -f -a "hour\t''
day\t''
week\t''
month\t''
year\t''
ever\t''"
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l job -d 'Name of the job for --supersede, --skip-ok=DUR, --once-per [default: user and COMMAND]' -r -f -a "(__fish_rlock_names '' --names=jobs)"
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -s n -l no-wait -d 'Exit with 75 at once if the lock is busy'
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -s q -l quiet -d 'Print nothing when busy'
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l no-default-store -d 'Fail unless --store, RLOCK_STORE or /etc/rlock.conf names the store'
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -s v -l verbose -d 'Say what is done, and why a run was skipped'
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l supersede -d 'End the waiting requests of the same job, as busy: the newest one wins'
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l until-ready -d 'Release the lock once COMMAND says READY=1, as sd_notify does'
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -l nested -d 'Run nothing unless a lock around this command covers the claims'
complete -c rlock -n "__fish_rlock_using_subcommand range-prewrite" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -s w -l wait -d 'Wait at most DUR [default: RLOCK_WAIT or ever]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l max-waiting -d 'Exit with 75 at once if N requests already wait; 0 as -n' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l place -d 'Keep the place in the queue for 15m, for the next request with NAME' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l deadlock-timeout -d 'Time after which a nested wait looks for a deadlock; 0: never' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -s E -l conflict-exit-code -d 'Exit with N when busy' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l ttl -d 'Length of the lease at a server [default: RLOCK_TTL, else 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l grace -d 'Time from TERM to KILL when the lock is lost [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l connect-timeout -d 'Time in which a server has to be reached [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l replicas -d 'Number of replicas [with disks] that must have the lock before COMMAND starts [default: 0]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l history -d 'Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l owner -d 'The person or system that this is for [default: RLOCK_OWNER]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l reason -d 'The reason for this, for others to read [default: RLOCK_REASON]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l title -d 'What others see in place of COMMAND and its arguments' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l min-memory -d 'Start COMMAND only when so much memory is free, such as 4G' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l max-load -d 'Start COMMAND only when the load, or with N% the pressure, is at most N' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l meanwhile -d 'Run STRING by /bin/sh once: beside the wait, or after the release' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l else -d 'Run STRING by /bin/sh when busy; RLOCK_BUSY says why, "$@" is COMMAND' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l skip-ok -d 'Exit with 0 when busy, for at most DUR in a row' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l success-codes -d 'Count these exit codes as a success, too' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l hold-at-least -d 'Hold the lock for at least DUR, even if COMMAND ends sooner' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l max-runtime -d 'Stop COMMAND after DUR, and exit with 124' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l pid -d 'End the wait or COMMAND when PID, \'parent\' or \'agent\' ends' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l splay -d 'Sleep for a random part of DUR before the request' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l remember -d 'Remember this run and those before for DUR, up to 400d [default: 7d]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l status-file -d 'Write to FILE how the request and COMMAND ended, as JSON' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -s c -l shell -d 'Run STRING by /bin/sh instead of COMMAND' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l once-per -d 'Exit with 0 if a run succeeded within DUR, in this hour, day, week, month, year, or ever' -r -f -a "hour\t''
day\t''
week\t''
month\t''
year\t''
ever\t''"
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l job -d 'Name of the job for --supersede, --skip-ok=DUR, --once-per [default: user and COMMAND]' -r -f -a "(__fish_rlock_names '' --names=jobs)"
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -s n -l no-wait -d 'Exit with 75 at once if the lock is busy'
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -s q -l quiet -d 'Print nothing when busy'
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l no-default-store -d 'Fail unless --store, RLOCK_STORE or /etc/rlock.conf names the store'
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -s v -l verbose -d 'Say what is done, and why a run was skipped'
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l supersede -d 'End the waiting requests of the same job, as busy: the newest one wins'
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l until-ready -d 'Release the lock once COMMAND says READY=1, as sd_notify does'
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -l nested -d 'Run nothing unless a lock around this command covers the claims'
complete -c rlock -n "__fish_rlock_using_subcommand range-write" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l read -d 'Lock KEY for reading, beside other readers' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l prewrite -d 'Lock KEY for reading now and writing later, beside readers only' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l write -d 'Lock KEY for writing, alone, as a bare KEY does' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l slot -d 'Take one of the N slots of KEY; W with KEY=N:W' -r -f -a "(__fish_rlock_names =)"
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l path -d 'Lock the file or folder P, and all that is in it, for writing' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l path-read -d 'Lock the file or folder P, and all that is in it, for reading' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l range-read -d 'Lock an interval of KEY, such as \'[1.2,1.8)\', for reading' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l range-prewrite -d 'Lock an interval of KEY for reading now and writing later' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l range-write -d 'Lock an interval of KEY for writing' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l for -d 'Hold the lock for DUR, at most 7 days, or for ever' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l pid -d 'Hold it until the process PID, or \'agent\', ends' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l lost-signal -d 'Send PID this signal when the lock is lost, or none' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -s w -l wait -d 'Wait at most DUR [default: RLOCK_WAIT or ever]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l max-waiting -d 'Exit with 75 at once if N requests already wait; 0 as -n' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l place -d 'Keep the place in the queue for 15m, for the next request with NAME' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l deadlock-timeout -d 'Time after which a nested wait looks for a deadlock; 0: never' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -s E -l conflict-exit-code -d 'Exit with N when busy' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l ttl -d 'Length of the lease at a server [default: RLOCK_TTL, else 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l connect-timeout -d 'Time in which a server has to be reached [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l replicas -d 'Number of replicas [with disks] that must have the lock before COMMAND starts [default: 0]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l history -d 'Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l owner -d 'The person or system that this is for [default: RLOCK_OWNER]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l reason -d 'The reason for this, for others to read [default: RLOCK_REASON]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l title -d 'What others see in place of COMMAND and its arguments' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l job -d 'Name of the job in the store [default: derived from user and words]' -r -f -a "(__fish_rlock_names '' --names=jobs)"
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l grace -d 'Time before the end of a lease at which PID is told [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l export -d 'Print commands for eval; on failure (exit N)'
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -s n -l no-wait -d 'Exit with 75 at once if the lock is busy'
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -s q -l quiet -d 'Print nothing when busy'
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -l no-default-store -d 'Fail unless --store, RLOCK_STORE or /etc/rlock.conf names the store'
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -s v -l verbose -d 'Say what is done'
complete -c rlock -n "__fish_rlock_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand renew" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand renew" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand renew" -l for -d 'Hold for DUR from now, or \'ever\' [default: as acquire]; never shorter' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand renew" -l export -d 'Print nothing, or on failure (exit N), for a shell\'s eval'
complete -c rlock -n "__fish_rlock_using_subcommand renew" -s v -l verbose -d 'Say what was renewed'
complete -c rlock -n "__fish_rlock_using_subcommand renew" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand release" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand release" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand release" -l path -d 'Only the file or folder P, what is in it, and the folders around it' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand release" -l export -d 'Print the variables of the session around, for a shell\'s eval; on failure (exit N)'
complete -c rlock -n "__fish_rlock_using_subcommand release" -s v -l verbose -d 'Say what was released'
complete -c rlock -n "__fish_rlock_using_subcommand release" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand held" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand held" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand held" -l path -d 'The file or folder that has to be held' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand held" -l read -d 'For reading, or in any stronger mode'
complete -c rlock -n "__fish_rlock_using_subcommand held" -l prewrite -d 'For reading now and writing later, or for writing'
complete -c rlock -n "__fish_rlock_using_subcommand held" -l write -d 'For writing, as without an option'
complete -c rlock -n "__fish_rlock_using_subcommand held" -l slot -d 'One of its slots, or for writing'
complete -c rlock -n "__fish_rlock_using_subcommand held" -s v -l verbose -d 'Say in words what the exit status tells'
complete -c rlock -n "__fish_rlock_using_subcommand held" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l path -d 'Only the file or folder P, what is in it, and the folders around it' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l watch -d 'Go on with each change; a server is asked each DUR [1s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l color -d 'Use colours: always, never, or auto: on a terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l held-longer-than -d 'Only what is held for longer; exit 1 if there is any' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l waiting-longer-than -d 'Only who waits for longer; exit 1 if there is any' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l no-success-for -d 'Exit 1 and name each KEY without a successful run in DUR' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l job -d 'Only successful runs with this --job count' -r -f -a "(__fish_rlock_names '' --names=jobs)"
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -s o -l output -d 'Write the metrics to FILE' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l json -d 'Print JSON'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l names -d 'Print the names alone'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l tree -d 'Show as a tree who holds, what runs below, and who waits for what'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l dot -d 'Print a graph for Graphviz, as in: rlock inspect --dot | dot -Tsvg'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -s v -l verbose -d 'Show times of day instead of ages, and session ids'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l wide -d 'Cut nothing, even beyond the width of the terminal'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l prometheus -d 'Print metrics for Prometheus'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand doctor" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand doctor" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand doctor" -l ttl -d 'Length of the lease at a server [default: RLOCK_TTL, else 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand doctor" -l color -d 'Use colours: always, never, or auto: on a terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c rlock -n "__fish_rlock_using_subcommand doctor" -l json -d 'Print JSON'
complete -c rlock -n "__fish_rlock_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand history" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand history" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand history" -l path -d 'Only the file or folder P, what is in it, and the folders around it' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand history" -s n -l last -d 'Only the last N entries of each KEY' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand history" -l since -d 'Only what ended less than DUR ago' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand history" -l until -d 'Only what ended at least DUR ago' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand history" -l names -d 'Print the names of all that is remembered, held or waited for; =jobs: those of jobs' -r -f -a "keys\t''
jobs\t''"
complete -c rlock -n "__fish_rlock_using_subcommand history" -l color -d 'Use colours: always, never, or auto: on a terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c rlock -n "__fish_rlock_using_subcommand history" -l failed -d 'Only what failed: not exit 0, a skip, or the end of rlock acquire'
complete -c rlock -n "__fish_rlock_using_subcommand history" -l stats -d 'Sum up: waits, holds, failures, busy requests, queues'
complete -c rlock -n "__fish_rlock_using_subcommand history" -l blame -d 'Show who made whom wait, and for how long'
complete -c rlock -n "__fish_rlock_using_subcommand history" -l timeline -d 'Draw waits and holds as bars over time'
complete -c rlock -n "__fish_rlock_using_subcommand history" -l trace -d 'Print a trace for Perfetto or chrome://tracing'
complete -c rlock -n "__fish_rlock_using_subcommand history" -l json -d 'Print JSON'
complete -c rlock -n "__fish_rlock_using_subcommand history" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -l path -d 'Only the file or folder P, what is in it, and the folders around it' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -s w -l wait -d 'Wait at most DUR until the lock is released [default: the rest of the lease, or 1m]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -l session -d 'Break only the lock of this session' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -l pid -d 'Break only the lock of the rlock with this process id' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -l dry-run -d 'Only say what would be removed'
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -l break -d 'Break live locks on KEY, too, as \'rlock break\' does'
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -l now -d 'Free the lock at once, while its command may still run'
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -l all -d 'Break the locks on all paths, where several are held'
complete -c rlock -n "__fish_rlock_using_subcommand cleanup" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand break" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand break" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand break" -l path -d 'Only the file or folder P, what is in it, and the folders around it' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand break" -s w -l wait -d 'Wait at most DUR until the lock is released [default: the rest of the lease, or 1m]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand break" -l session -d 'Break only the lock of this session' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand break" -l pid -d 'Break only the lock of the rlock with this process id' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand break" -l dry-run -d 'Only say what would be broken'
complete -c rlock -n "__fish_rlock_using_subcommand break" -l now -d 'Free the lock at once, while its command may still run'
complete -c rlock -n "__fish_rlock_using_subcommand break" -l all -d 'Break the locks on all paths, where several are held'
complete -c rlock -n "__fish_rlock_using_subcommand break" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand shrink" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand shrink" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand shrink" -l resource -d 'Which lock, where the command holds several' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand shrink" -s v -l verbose -d 'Say what was shrunk'
complete -c rlock -n "__fish_rlock_using_subcommand shrink" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand downgrade" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand downgrade" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand downgrade" -l resource -d 'Which lock, where the command holds several' -r -f -a "(__fish_rlock_names)"
complete -c rlock -n "__fish_rlock_using_subcommand downgrade" -s v -l verbose -d 'Say what was lowered'
complete -c rlock -n "__fish_rlock_using_subcommand downgrade" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l listen -d 'Where to listen: HOST:PORT or unix:/PATH' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l token-file -d 'Clients must send AUTH with the token in FILE' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l max-connections -d 'How many clients may be connected' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l max-waiting -d 'How many requests may wait; more are busy at once' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l only -d 'Serve only KEYs that match one of these patterns' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l ttl -d 'Length of the lease at a server [default: RLOCK_TTL, else 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l history -d 'Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l grace -d 'How long holders go on after TERM [default: 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l stdio -d 'Serve one client on standard input and output'
complete -c rlock -n "__fish_rlock_using_subcommand serve" -l insecure -d 'Listen beyond this machine without a token'
complete -c rlock -n "__fish_rlock_using_subcommand serve" -s v -l verbose -d 'Log each connection, lock and unlock'
complete -c rlock -n "__fish_rlock_using_subcommand serve" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand completions" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand man" -l store -d 'The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand man" -l namespace -d 'Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand man" -l dir -d 'Write all pages below DIR, in man1, man5, man7 and man8' -r -f -a "(__fish_complete_directories)"
complete -c rlock -n "__fish_rlock_using_subcommand man" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "exec" -d 'Run a command while holding locks on whole resources'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "range-read" -d 'Run a command while holding a read lock on an interval'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "range-prewrite" -d 'Run a command while holding a prewrite lock on an interval'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "range-write" -d 'Run a command while holding a write lock on an interval'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "acquire" -d 'Acquire a lock that lasts for a time, or as long as a process'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "renew" -d 'Let a lock of rlock acquire last longer'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "release" -d 'Give back a lock of rlock acquire'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "held" -d 'Tell by the exit status whether this runs below a lock'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "inspect" -d 'Show who holds what and who waits'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "doctor" -d 'Check the store, and say what to do'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "history" -d 'Show what ran under a lock, when, and how it ended'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "cleanup" -d 'Remove what is expired or dead'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "break" -d 'Have the commands of live locks stopped, and their locks freed'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "shrink" -d 'Inside a hold: give up part of the interval'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "downgrade" -d 'Inside a hold: lower its mode'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "serve" -d 'Serve locks to any program that speaks lines'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "completions" -d 'Print a completion script for a shell'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "man" -d 'Show a man page, or write them all'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "agents" -d 'For coding agents that share a machine'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "config" -d 'Where rlock locks, and /etc/rlock.conf'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "cron" -d 'Jobs of cron'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "ci" -d 'Jobs of a CI'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "exit-codes" -d 'What an exit status tells'
complete -c rlock -n "__fish_rlock_using_subcommand help; and not __fish_seen_subcommand_from exec range-read range-prewrite range-write acquire renew release held inspect doctor history cleanup break shrink downgrade serve completions man agents config cron ci exit-codes stuck" -f -a "stuck" -d 'What to do if a lock seems stuck'
complete -c rlock -n "__fish_rlock_using_subcommand help; and __fish_seen_subcommand_from agents" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand help; and __fish_seen_subcommand_from config" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand help; and __fish_seen_subcommand_from cron" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand help; and __fish_seen_subcommand_from ci" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand help; and __fish_seen_subcommand_from exit-codes" -s h -l help -d 'Print help'
complete -c rlock -n "__fish_rlock_using_subcommand help; and __fish_seen_subcommand_from stuck" -s h -l help -d 'Print help'

# The script of clap_complete precedes these functions. They add the names of live resources where a
# KEY stands, and the shell's own completion of commands after `--`.

# Prints how many KEYs a subcommand takes, then its options that take a value, each as often as it
# takes one. `--` stands for the command.
function __fish_rlock_grammar
    switch $argv[1]
        case exec
            echo 1 --store --namespace --read --prewrite --write --slot --path --path-read --range-read --range-read --range-prewrite --range-prewrite --range-write --range-write --wait -w --max-waiting --place --deadlock-timeout --conflict-exit-code -E --ttl --grace --connect-timeout --replicas --history --owner --reason --title --min-memory --max-load --meanwhile --else --once-per --success-codes --hold-at-least --max-runtime --pid --splay --remember --status-file --shell -c --job --
        case range-read
            echo 1 --store --namespace --wait -w --max-waiting --place --deadlock-timeout --conflict-exit-code -E --ttl --grace --connect-timeout --replicas --history --owner --reason --title --min-memory --max-load --meanwhile --else --success-codes --hold-at-least --max-runtime --pid --splay --remember --status-file --shell -c --once-per --job --
        case range-prewrite
            echo 1 --store --namespace --wait -w --max-waiting --place --deadlock-timeout --conflict-exit-code -E --ttl --grace --connect-timeout --replicas --history --owner --reason --title --min-memory --max-load --meanwhile --else --success-codes --hold-at-least --max-runtime --pid --splay --remember --status-file --shell -c --once-per --job --
        case range-write
            echo 1 --store --namespace --wait -w --max-waiting --place --deadlock-timeout --conflict-exit-code -E --ttl --grace --connect-timeout --replicas --history --owner --reason --title --min-memory --max-load --meanwhile --else --success-codes --hold-at-least --max-runtime --pid --splay --remember --status-file --shell -c --once-per --job --
        case acquire
            echo 1 --store --namespace --read --prewrite --write --slot --path --path-read --range-read --range-read --range-prewrite --range-prewrite --range-write --range-write --for --pid --lost-signal --wait -w --max-waiting --place --deadlock-timeout --conflict-exit-code -E --ttl --connect-timeout --replicas --history --owner --reason --title --job --grace
        case renew
            echo 0 --store --namespace --for
        case release
            echo 0 --store --namespace --path
        case held
            echo 1 --store --namespace --path
        case inspect
            echo 999 --store --namespace --path --color --held-longer-than --waiting-longer-than --no-success-for --job --output -o
        case doctor
            echo 0 --store --namespace --ttl --color
        case history
            echo 999 --store --namespace --path --last -n --since --until --color
        case cleanup
            echo 999 --store --namespace --path --wait -w --session --pid
        case break
            echo 999 --store --namespace --path --wait -w --session --pid
        case shrink
            echo 0 --store --namespace --resource
        case downgrade
            echo 0 --store --namespace --resource
        case serve
            echo 0 --store --namespace --listen --token-file --max-connections --max-waiting --only --ttl --history --grace
        case completions
            echo 0 --store --namespace
        case man
            echo 0 --store --namespace --dir
        case help
            echo 0
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
complete -c rlock -n "__fish_rlock_using_subcommand downgrade" -f -a "read prewrite"
complete -c rlock -n "__fish_rlock_using_subcommand completions" -f -a "bash zsh fish"
complete -c rlock -n "__fish_rlock_using_subcommand man" -f -a "rlock rlock-exec rlock-range-read rlock-range-prewrite rlock-range-write rlock-acquire rlock-renew rlock-release rlock-held rlock-inspect rlock-doctor rlock-history rlock-cleanup rlock-break rlock-shrink rlock-downgrade rlock-serve rlock-completions rlock-man rlock-range rlock.conf rlock-redis rlock-postgres rlock-recipes"
