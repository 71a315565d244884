#!/usr/bin/env python3
"""Runs a command under a lock of rlock serve: client.py HOST PORT KEY COMMAND [ARG]..."""
import os, signal, socket, subprocess, sys, threading
host, port, key, *command = sys.argv[1:]
server = socket.create_connection((host, port))
server.sendall(f"LOCK {key}\n".encode())
answer = (answers := server.makefile()).readline().strip() or "the server is gone"
if answer.split()[0] != "ok":
    print("client.py: not locked:", answer, file=sys.stderr), sys.exit(75)
# The command inherits the connection, so the lock lasts as long as the command even if this client is killed.
work = subprocess.Popen(command, start_new_session=True, pass_fds=[server.fileno()])
threading.Thread(target=lambda: (work.wait(), server.send(b"UNLOCK\n")), daemon=True).start()
answer = answers.readline().strip() or "the server is gone"
if answer == "ok": sys.exit(work.wait())
print("client.py: stopped:", answer, file=sys.stderr), os.killpg(work.pid, signal.SIGTERM), sys.exit(76)
