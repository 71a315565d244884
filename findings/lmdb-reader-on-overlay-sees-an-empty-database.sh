#!/usr/bin/env bash
# LMDB 0.9 (lmdb 1.6.2, PyPI): a database in a container's image, the lower layer of an overlay.
# One would expect: a process that opened it read-only goes on to see the old data, at worst.
# What happens: the first write copies data.mdb up, and the reader keeps the old file. Both share
# lock.mdb, which names the newest transaction. After each odd commit the reader looks at the other
# head of its file: its database is empty. After each even one the old data is back. No call fails.
# The script needs root, for the mount.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
pip install -q --no-deps --target packages lmdb==1.6.2 2>/dev/null
export PYTHONPATH=$folder/packages
cat >lmdb.sh <<'END'
mount -t tmpfs tmpfs layers
mkdir layers/lower layers/upper layers/work layers/merged
python3 steps.py image
mount -t overlay -o lowerdir=layers/lower,upperdir=layers/upper,workdir=layers/work overlay layers/merged
python3 steps.py container
END
cat >steps.py <<'END'
import lmdb, subprocess, sys
def put(folder, value):
    with lmdb.open(folder) as e, e.begin(write=True) as t: t.put(b"key", value)
if sys.argv[1] == "image": put("layers/lower/db", b"of the image")
elif sys.argv[1] == "container":
    reader = lmdb.open("layers/merged/db", readonly=True)
    def look(when):
        with reader.begin() as t: print(when, t.get(b"key"), flush=True)
    look("at first:")
    for value in "first", "second", "third":
        subprocess.run([sys.executable, "steps.py", value], check=True)
        look(f"after the {value} commit:")
    with lmdb.open("layers/upper/db", readonly=True, lock=False) as e, e.begin() as t: print("a new reader:", t.get(b"key"))
else: put("layers/merged/db", sys.argv[1].encode())
END
mkdir layers
unshare --mount sh -e lmdb.sh | tee log
[ "$(cat log)" = "at first: b'of the image'
after the first commit: None
after the second commit: b'of the image'
after the third commit: None
a new reader: b'third'" ]
