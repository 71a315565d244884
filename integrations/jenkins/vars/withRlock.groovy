// A step for a shared library of Jenkins: withRlock(key: 'deploy', wait: '30m', for: '1h') { … }
// The values reach the shell as variables only. `store` names the store; else RLOCK_STORE or
// /etc/rlock.conf of the agent does.
def call(Map lock, Closure body) {
    def claim = "LOCK_CLAIM=--${lock.mode ?: 'write'}=${lock.key}"
    def store = lock.store ? ["RLOCK_STORE=${lock.store}"] : []
    def variables = []
    withEnv(store + [claim, "LOCK_WAIT=${lock.wait ?: '30m'}", "LOCK_FOR=${lock['for'] ?: '1h'}"]) {
        variables = sh(script: 'rlock acquire --no-default-store "$LOCK_CLAIM" "--wait=$LOCK_WAIT" "--for=$LOCK_FOR"', returnStdout: true).trim().readLines()
    }
    withEnv(store + variables) {
        try {
            body()
        } finally {
            sh 'rlock release "$RLOCK_SESSION"'
        }
    }
}
