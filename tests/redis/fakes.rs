//! Fake servers, which listen on a free port and send the replies that the test gives them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A fake server. It and its connections end when it is dropped.
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
    /// Starts a server that sends, for each read from a client, the reply that `answer` returns. An
    /// empty reply sends nothing.
    pub(crate) fn new(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = listener.local_addr().expect("the listener has an address").port();
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

    /// Starts a server that accepts connections and sends nothing.
    pub(crate) fn silent() -> Self {
        Self::new(|_| String::new())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

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
            // Connections that have ended already cannot be shut down.
            let _ = connection.shutdown(Shutdown::Both);
        }
        // This wakes the listener, which then ends.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// Replies to each command of a request as Redis 5 does: without HELLO, and without the newer
/// options of ZRANGE. The server has state for the resource `k`.
pub(crate) fn as_redis_5(request: &str) -> String {
    let words: Vec<&str> = request.split("\r\n").collect();
    // A command is `*N`, followed by `$BYTES` and the word for each of its words.
    let commands =
        words.windows(3).filter(|line| line[0].starts_with('*') && line[1].starts_with('$')).map(|line| line[2]);
    let answer = |command: &str| match command.to_ascii_uppercase().as_str() {
        "EVALSHA" => "-NOSCRIPT No matching script. Please use EVAL.\r\n".to_owned(),
        "EVAL" => "-ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4c48582e38c0e791): @user_script:7: \
                   @user_script: 7: ERR syntax error \r\n"
            .to_owned(),
        "SCAN" => {
            let pattern = words.iter().find_map(|word| word.strip_suffix("*:s")).expect("rlock scans for its own keys");
            let key = format!("{pattern}k}}:s");
            format!("*2\r\n$1\r\n0\r\n*1\r\n${}\r\n{key}\r\n", key.len())
        }
        "HELLO" => "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n".to_owned(),
        "PING" => "+PONG\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    };
    commands.map(answer).collect()
}
