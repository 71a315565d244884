//! Servers that are none: they listen on a free port and answer what the test tells them to.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A fake server; it and its connections end when this is dropped.
pub(crate) struct Fake {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    closed: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Fake {
    /// Answers whatever a client writes at once with what `answer` makes of it; with nothing, it stays silent.
    pub(crate) fn new(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let (shared, answer) = (Arc::new(Shared::default()), Arc::new(answer));
        let fake = Self { port, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.closed.load(Ordering::SeqCst) {
                    return;
                }
                let kept = client.try_clone().expect("a socket can be shared");
                shared.connections.lock().expect("no thread of the fake panics").push(kept);
                let answer = Arc::clone(&answer);
                thread::spawn(move || serve(client, &*answer));
            }
        });
        fake
    }

    /// One that takes connections and never says a word.
    pub(crate) fn silent() -> Self {
        Self::new(|_| String::new())
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a store on it.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

fn serve(mut client: TcpStream, answer: &dyn Fn(&str) -> String) {
    let mut buffer = [0; 1 << 16];
    while let Ok(read @ 1..) = client.read(&mut buffer) {
        if client.write_all(answer(&String::from_utf8_lossy(&buffer[..read])).as_bytes()).is_err() {
            return;
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        for connection in self.shared.connections.lock().expect("no thread of the fake panics").drain(..) {
            // Those that ended before can't be shut down.
            let _ = connection.shutdown(Shutdown::Both);
        }
        // Wakes the listener, which ends.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// How Redis 5 answers to each command of a request: it knows neither HELLO nor what ZRANGE can do since 6.2. Somebody has used the
/// resource `k` there.
pub(crate) fn as_redis_5(request: &str) -> String {
    let words: Vec<&str> = request.split("\r\n").collect();
    // A command is `*N`, then for each of its words `$BYTES` and the word.
    let commands =
        words.windows(3).filter(|line| line[0].starts_with('*') && line[1].starts_with('$')).map(|line| line[2]);
    let answer = |command: &str| match command.to_ascii_uppercase().as_str() {
        "EVALSHA" => "-NOSCRIPT No matching script. Please use EVAL.\r\n".to_owned(),
        "EVAL" => "-ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4c48582e38c0e791): @user_script:7: \
                   @user_script: 7: ERR syntax error \r\n"
            .to_owned(),
        "SCAN" => {
            let pattern = words.iter().find_map(|word| word.strip_suffix("*:d")).expect("it looks for keys of its own");
            let key = format!("{pattern}k}}:d");
            format!("*2\r\n$1\r\n0\r\n*1\r\n${}\r\n{key}\r\n", key.len())
        }
        "HELLO" => "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n".to_owned(),
        "PING" => "+PONG\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    };
    commands.map(answer).collect()
}
