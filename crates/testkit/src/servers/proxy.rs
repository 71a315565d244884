//! A proxy between a server and its clients, which delays and loses messages as the test says.
//!
//! The proxy does not parse the protocol: a request is the bytes of one write of a client, and a
//! reply is what the server writes next. rlock writes each request at once and waits for the reply,
//! so the proxy identifies a request by its number.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::{Server, wait_until};

/// A proxy on a unix socket of its own. Its connections end when it is dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    folder: TempDir,
}

struct Shared {
    server: PathBuf,
    orders: Mutex<Orders>,
    changed: Condvar,
}

#[derive(Default)]
struct Orders {
    /// The number of requests since the start of the proxy.
    requests: u64,
    /// The numbers of the requests whose replies are lost after the server has executed them.
    lose_replies: Vec<u64>,
    /// The numbers of the requests that never reach the server.
    lose_requests: Vec<u64>,
    /// The number of the request before which everything stops, as by [`Proxy::hold`].
    hold_at: Option<u64>,
    /// The delay of each reply.
    delay: Duration,
    /// Whether the proxy forwards nothing, in both directions.
    held: bool,
    /// Whether the proxy rejects new connections.
    refuses: bool,
    closed: bool,
    /// The open connections.
    connections: Vec<Arc<Connection>>,
}

struct Connection {
    client: UnixStream,
    server: UnixStream,
    /// Whether the proxy drops all data.
    is_forgotten: AtomicBool,
    /// Whether the server's next reply is lost.
    is_deaf: AtomicBool,
}

impl Proxy {
    /// Starts a proxy for a server.
    pub fn new(server: &Server) -> Self {
        Self::before(server.socket())
    }

    /// Starts a proxy for a server with this socket.
    pub fn before(server: PathBuf) -> Self {
        let folder = tempfile::Builder::new().prefix("rlock-proxy-").tempdir().expect("a folder can be made");
        let shared = Shared { server, orders: Mutex::default(), changed: Condvar::new() };
        let proxy = Self { shared: Arc::new(shared), folder };
        let listener = UnixListener::bind(proxy.socket()).expect("the folder is new");
        let shared = Arc::clone(&proxy.shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let orders = shared.orders();
                if orders.closed {
                    return;
                }
                if !orders.refuses {
                    drop(orders);
                    // If the client went away while it waited, or the server is down, the client's
                    // end is closed.
                    let _ = client.and_then(|client| shared.connect(client));
                }
            }
        });
        proxy
    }

    /// The URL of a store on the server behind the proxy.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The same for PostgreSQL, which names the folder alone.
    pub fn postgres_url(&self) -> String {
        format!("postgres://tester@/postgres?host={}", self.folder.path().display())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join(".s.PGSQL.5432")
    }

    /// The number of requests since the start of the proxy.
    pub fn requests(&self) -> u64 {
        self.shared.orders().requests
    }

    /// Loses the reply to a request after the server has executed it, and closes the connection.
    /// The first request has the number 1.
    pub fn lose_reply(&self, request: u64) {
        self.shared.orders().lose_replies.push(request);
    }

    /// Loses a request on its way to the server, and closes the connection.
    pub fn lose_request(&self, request: u64) {
        self.shared.orders().lose_requests.push(request);
    }

    /// Delays each reply by `delay`.
    pub fn delay(&self, delay: Duration) {
        self.shared.orders().delay = delay;
    }

    /// Forwards nothing in both directions until [`Proxy::pass`]. The connections stay open, and
    /// neither end notices.
    pub fn hold(&self) {
        self.shared.orders().held = true;
    }

    /// Does the same as [`Proxy::hold`] when this request comes, before the server sees it.
    pub fn hold_at(&self, request: u64) {
        self.shared.orders().hold_at = Some(request);
    }

    /// Waits until the proxy holds a message back.
    pub fn until_held(&self) {
        wait_until("the request comes before which the proxy stops", || self.shared.orders().held);
    }

    /// Rejects new connections until [`Proxy::pass`].
    pub fn refuse(&self) {
        self.shared.orders().refuses = true;
    }

    /// Forwards everything again, including the data that was held back.
    pub fn pass(&self) {
        let mut orders = self.shared.orders();
        (orders.held, orders.refuses) = (false, false);
        self.shared.changed.notify_all();
    }

    /// Drops all data on the existing connections in both directions, like a firewall that has
    /// forgotten them. Neither end notices, and new connections work.
    pub fn forget(&self) {
        for connection in &self.shared.orders().connections {
            connection.is_forgotten.store(true, Ordering::SeqCst);
        }
    }

    /// Does the same as [`Proxy::forget`], and also sends endless messages to the clients of these
    /// connections until they close them.
    pub fn flood(&self) {
        self.forget();
        for connection in self.shared.orders().connections.iter().cloned() {
            let messages = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n".repeat(1000);
            thread::spawn(move || while (&connection.client).write_all(&messages).is_ok() {});
        }
    }

    /// Closes all connections, even in the middle of a message.
    pub fn cut(&self) {
        self.shared.orders().connections.drain(..).for_each(|connection| connection.end());
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.orders().closed = true;
        self.pass();
        self.cut();
        // Wakes the listener, which then ends.
        let _ = UnixStream::connect(self.socket());
    }
}

/// The proxy's treatment of one request.
enum Fate {
    Passes,
    Vanishes,
    /// The reply to the request is lost.
    Unanswered,
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().expect("no thread of the proxy panics")
    }

    /// Starts two threads for a connection: one forwards the client's data, the other the server's.
    fn connect(self: &Arc<Self>, client: UnixStream) -> std::io::Result<()> {
        let server = UnixStream::connect(&self.server)?;
        let (is_forgotten, is_deaf) = <(AtomicBool, AtomicBool)>::default();
        let connection = Arc::new(Connection { client, server, is_forgotten, is_deaf });
        self.orders().connections.push(Arc::clone(&connection));
        for forward in [Self::forward_requests, Self::forward_replies] {
            let (shared, connection) = (Arc::clone(self), Arc::clone(&connection));
            thread::spawn(move || {
                forward(&shared, &connection);
                // This ends the other thread, too.
                connection.end();
                shared.orders().connections.retain(|other| !Arc::ptr_eq(other, &connection));
            });
        }
        Ok(())
    }

    fn forward_requests(&self, connection: &Connection) {
        let Connection { client, server, is_forgotten, is_deaf } = connection;
        let (mut client, mut server) = (client, server);
        let mut buffer = [0; 1 << 16];
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            if is_forgotten.load(Ordering::SeqCst) {
                continue;
            }
            let fate = self.fate();
            if matches!(fate, Fate::Vanishes) {
                return;
            }
            is_deaf.store(matches!(fate, Fate::Unanswered), Ordering::SeqCst);
            if server.write_all(&buffer[..read]).is_err() {
                return;
            }
        }
    }

    fn forward_replies(&self, connection: &Connection) {
        let Connection { client, server, is_forgotten, is_deaf } = connection;
        let (mut client, mut server) = (client, server);
        let mut buffer = [0; 1 << 16];
        while let Ok(read @ 1..) = server.read(&mut buffer) {
            if is_forgotten.load(Ordering::SeqCst) {
                continue;
            }
            if is_deaf.load(Ordering::SeqCst) {
                return;
            }
            let delay = self.until_it_passes().delay;
            thread::sleep(delay);
            if client.write_all(&buffer[..read]).is_err() {
                return;
            }
        }
    }

    fn fate(&self) -> Fate {
        let mut orders = self.until_it_passes();
        orders.requests += 1;
        let number = orders.requests;
        if orders.hold_at == Some(number) {
            orders.held = true;
            drop(orders);
            orders = self.until_it_passes();
        }
        if orders.lose_requests.contains(&number) {
            Fate::Vanishes
        } else if orders.lose_replies.contains(&number) {
            Fate::Unanswered
        } else {
            Fate::Passes
        }
    }

    fn until_it_passes(&self) -> MutexGuard<'_, Orders> {
        let held = |orders: &mut Orders| orders.held && !orders.closed;
        self.changed.wait_while(self.orders(), held).expect("no thread of the proxy panics")
    }
}

impl Connection {
    /// Closes both ends. An end may be closed before.
    fn end(&self) {
        for stream in [&self.client, &self.server] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
