#!/usr/bin/env python3
"""Runs a command under a lock of rlock serve: client.py HOST PORT KEY COMMAND [ARG]..."""
import os, signal, socket, subprocess, sys, threading
server, key, command = socket.create_connection(sys.argv[1:3]), sys.argv[3], sys.argv[4:]
server.sendall(f"LOCK {key}\n".encode())
answer = (answers := server.makefile()).readline().strip() or "the server is gone"
if answer.split()[0] != "ok": print("client.py: not locked:", answer, file=sys.stderr), sys.exit(75)
# The command inherits the connection, so a killed client leaves the lock to its command.
work = subprocess.Popen(command, start_new_session=True, pass_fds=[server.fileno()])
threading.Thread(target=lambda: (work.wait(), server.send(b"UNLOCK\n")), daemon=True).start()
answer = answers.readline().strip() or "the server is gone"
if answer == "ok": sys.exit(work.wait())
print("client.py: stopped:", answer, file=sys.stderr)
if work.poll() is None: os.killpg(work.pid, signal.SIGTERM)
sys.exit(76)
