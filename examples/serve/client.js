#!/usr/bin/env node
// Runs a command under a lock of rlock serve: client.js HOST PORT KEY COMMAND [ARG]...
const [host, port, key, command, ...args] = process.argv.slice(2);
const server = require("net").connect(port, host, () => server.write(`LOCK ${key}\n`));
let work, fail = (code, text) => (console.error("client.js:", text), process.exit(code));
const lost = (text) => work ? (process.kill(-work.pid), fail(76, `stopped: ${text}`)) : fail(75, `not locked: ${text}`);
server.on("error", (error) => lost(error.message)).on("end", () => lost("the server is gone"));
require("readline").createInterface({ input: server }).on("line", (answer) => {
  if (work && answer === "ok") process.exit(work.exitCode ?? 1);
  if (work || answer.split(" ")[0] !== "ok") lost(answer);
  // The command inherits the connection, so the lock lasts as long as the command even if this client is killed.
  work = require("child_process").spawn(command, args, { stdio: ["inherit", "inherit", "inherit", server], detached: true });
  work.on("error", (error) => fail(127, error.message)).on("exit", () => server.write("UNLOCK\n"));
  server.resume();
});
