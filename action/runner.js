// The interface of the runner of GitHub: inputs, files for results, and commands on standard output.
'use strict';

const { randomUUID } = require('node:crypto');
const { appendFileSync } = require('node:fs');

function input(name) {
  return (process.env[`INPUT_${name.toUpperCase()}`] ?? '').trim();
}

// The store is a variable, because ps would show a password in an argument.
function environment() {
  const store = input('store');
  return store === '' ? process.env : { ...process.env, RLOCK_STORE: store };
}

// Adds values to the file that a variable names. No value can end its delimiter, which is random.
function set(variable, values) {
  const delimiter = `end_${randomUUID()}`;
  for (const [name, value] of Object.entries(values)) {
    appendFileSync(process.env[variable], `${name}<<${delimiter}\n${value}\n${delimiter}\n`);
  }
}

// Prints a line as an annotation of the job.
function say(level, text) {
  const escaped = text.replaceAll('%', '%25').replaceAll('\r', '%0D').replaceAll('\n', '%0A');
  process.stdout.write(`::${level}::rlock: ${escaped}\n`);
}

function fail(text, code = 1) {
  say('error', text);
  process.exitCode = code;
}

module.exports = { environment, fail, input, say, set };
