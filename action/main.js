// Acquires the lock, hands its variables to the later steps, and leaves its session to post.js.
'use strict';

const { spawn } = require('node:child_process');
const runner = require('./runner.js');

const BUSY = 75;

// Each input is one word behind an '=', so none of them can be taken for an option or by a shell.
function words() {
  const [key, mode, wait, length] = ['key', 'mode', 'wait', 'for'].map(runner.input);
  if (key === '') return runner.fail("the input 'key' is missing");
  const slots = /^slot=([0-9]+)$/.exec(mode);
  if (!slots && !['read', 'prewrite', 'write'].includes(mode)) {
    return runner.fail(`the input 'mode' must be read, prewrite, write or slot=N, not '${mode}'`);
  }
  const claim = slots ? `--slot=${key}=${slots[1]}` : `--${mode}=${key}`;
  // Without a store, as after a secret that is missing, the lock would be one of this machine only.
  return ['acquire', '--no-default-store', claim, `--for=${length}`, ...(wait === '' ? [] : [`--wait=${wait}`])];
}

// Passes on the runner's signals, from before rlock exists. A lock that is granted nevertheless is
// left to post.js.
function start(arguments_) {
  let rlock;
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => rlock.kill(signal));
  rlock = spawn('rlock', arguments_, { env: runner.environment(), stdio: ['ignore', 'pipe', 'inherit'] });
  return rlock;
}

function finish(code, signal, printed) {
  if (code !== 0) {
    if (code === BUSY) runner.set('GITHUB_OUTPUT', { acquired: 'false' });
    return runner.fail(code === BUSY ? 'the lock is busy' : `rlock acquire ended with ${signal ?? code}`, code ?? 1);
  }
  const lines = printed.split('\n').filter((line) => line !== '');
  const variables = Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]));
  runner.set('GITHUB_STATE', { session: variables.RLOCK_SESSION, namespace: variables.RLOCK_NAMESPACE });
  // rlock prints no URL with a password, but the later steps need it.
  const store = runner.input('store');
  runner.set('GITHUB_ENV', store === '' ? variables : { ...variables, RLOCK_STORE: store });
  runner.set('GITHUB_OUTPUT', { acquired: 'true', token: variables.RLOCK_TOKEN });
}

const arguments_ = words();
if (arguments_) {
  const rlock = start(arguments_);
  let printed = '';
  rlock.stdout.setEncoding('utf8').on('data', (text) => (printed += text));
  rlock.on('error', (error) => runner.fail(`rlock can't be started: ${error.message}; use action/setup before`, 127));
  rlock.on('close', (code, signal) => process.exitCode ?? finish(code, signal, printed));
}
