// Installs the wheel of rlock-cli by pip in a folder of its own, and adds the folder to PATH.
'use strict';

const { spawnSync } = require('node:child_process');
const { appendFileSync } = require('node:fs');
const { join } = require('node:path');
const runner = require('../runner.js');

const version = runner.input('version');
if (version !== '' && !/^[0-9][0-9A-Za-z.]*$/.test(version)) {
  runner.fail(`the input 'version' must be a version such as 1.0.0, not '${version}'`);
} else {
  const folder = join(process.env.RUNNER_TEMP, 'rlock-cli');
  const requirement = version === '' ? 'rlock-cli' : `rlock-cli==${version}`;
  // --only-binary: a build from source would take minutes and a toolchain.
  const words = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--only-binary', ':all:', '--no-deps'];
  const { status, error } = spawnSync('python3', [...words, '--target', folder, '--upgrade', requirement], { stdio: 'inherit' });
  if (status === 0) appendFileSync(process.env.GITHUB_PATH, `${join(folder, 'bin')}\n`);
  else runner.fail(`pip could not install ${requirement}: ${error?.message ?? `exit status ${status}`}`);
}
