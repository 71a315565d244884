// A step for a shared library of Jenkins: withRlock(key: 'deploy', wait: '30m', for: '1h') { … }
// The values reach the shell as variables only.
def call(Map lock, Closure body) {
    def claim = "LOCK_CLAIM=--${lock.mode ?: 'write'}=${lock.key}"
    def variables = []
    withEnv([claim, "LOCK_WAIT=${lock.wait ?: '30m'}", "LOCK_FOR=${lock['for'] ?: '1h'}"]) {
        variables = sh(script: 'rlock acquire "$LOCK_CLAIM" "--wait=$LOCK_WAIT" "--for=$LOCK_FOR"', returnStdout: true).trim().readLines()
    }
    withEnv(variables) {
        try {
            body()
        } finally {
            sh 'rlock release "$RLOCK_SESSION"'
        }
    }
}
