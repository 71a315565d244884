// Releases the lock that main.js acquired, however the job ended.
'use strict';

const { spawnSync } = require('node:child_process');
const runner = require('./runner.js');

const LOST = 76;

const session = process.env.STATE_session;
if (session) {
  const env = { ...runner.environment(), RLOCK_NAMESPACE: process.env.STATE_namespace };
  const { status, error } = spawnSync('rlock', ['release', session], { env, stdio: ['ignore', 'inherit', 'inherit'] });
  // The job has ended, so nothing is left to stop.
  if (status === LOST) runner.say('warning', 'the lock was not held any more when the job ended; see the input for');
  else if (status !== 0) runner.say('warning', `the lock stays until its end: rlock release ended with ${error?.message ?? status}`);
}
