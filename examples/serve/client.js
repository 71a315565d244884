#!/usr/bin/env node
// Runs a command under a lock of rlock serve: client.js HOST PORT KEY COMMAND [ARG]...
const [host, port, key, command, ...args] = process.argv.slice(2);
const server = require("net").connect(port, host, () => server.write(`LOCK ${key}\n`));
let work, fail = (code, text) => (console.error("client.js:", text), process.exit(code));
const stop = () => { try { process.kill(-work.pid); } catch { /* It has ended. */ } };
const lost = (text) => work ? (stop(), fail(76, `stopped: ${text}`)) : fail(75, `not locked: ${text}`);
server.on("error", (error) => lost(error.message)).on("end", () => lost("the server is gone"));
require("readline").createInterface({ input: server }).on("line", (answer) => {
  if (work && answer === "ok") process.exit(work.exitCode ?? 1);
  if (work || answer.split(" ")[0] !== "ok") lost(answer);
  // The command inherits the connection, so a killed client leaves the lock to its command.
  work = require("child_process").spawn(command, args, { stdio: [0, 1, 2, server], detached: true });
  work.on("spawn", () => server.resume()).on("exit", () => server.write("UNLOCK\n"));
});
