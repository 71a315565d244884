//! A peer that never stops sending. It forwards everything to a server until the test begins the
//! flood.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use tempfile::TempDir;

use super::{Server, wait_until};

/// The endless data of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Water {
    /// Sent once, as the head of a value that never ends.
    pub head: &'static str,
    /// Sent again and again.
    pub piece: &'static str,
}

/// A proxy on a unix socket of its own. Its connections end when it is dropped.
pub struct Flood {
    shared: Arc<Shared>,
    folder: TempDir,
}

struct Shared {
    server: PathBuf,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    water: Option<Water>,
    closed: bool,
    clients: Vec<UnixStream>,
    servers: Vec<UnixStream>,
}

impl Flood {
    /// Starts a proxy for a server.
    pub fn before(server: &Server) -> Self {
        let folder = tempfile::Builder::new().prefix("rlock-flood-").tempdir().expect("a folder can be made");
        let shared = Arc::new(Shared { server: server.socket(), connections: Mutex::default() });
        let flood = Self { shared: Arc::clone(&shared), folder };
        let listener = UnixListener::bind(flood.socket()).expect("the folder is new");
        thread::spawn(move || {
            for client in listener.incoming() {
                if shared.connections().closed {
                    return;
                }
                // This fails if the client has gone away or the server is down.
                let _ = client.and_then(|client| shared.connect(client));
            }
        });
        flood
    }

    /// The URL of a store on the server behind the proxy.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// From now on, every client of old and new connections gets `water` and nothing else.
    /// Everything that clients send is lost.
    pub fn begin(&self, water: Water) {
        let mut connections = self.shared.connections();
        connections.water = Some(water);
        end(&mut connections.servers);
    }

    pub fn until_connected(&self) {
        wait_until("a client connects", || !self.shared.connections().clients.is_empty());
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let mut connections = self.shared.connections();
        connections.closed = true;
        end(&mut connections.servers);
        end(&mut connections.clients);
        drop(connections);
        // Wakes the listener, which then ends.
        let _ = UnixStream::connect(self.socket());
    }
}

fn end(connections: &mut Vec<UnixStream>) {
    for connection in connections.drain(..) {
        // A connection that has ended before cannot be shut down.
        let _ = connection.shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().expect("no thread of the flood panics")
    }

    fn connect(self: &Arc<Self>, client: UnixStream) -> std::io::Result<()> {
        let mut connections = self.connections();
        connections.clients.push(client.try_clone()?);
        let shared = Arc::clone(self);
        if connections.water.is_some() {
            thread::spawn(move || shared.flood(client));
            return Ok(());
        }
        let server = UnixStream::connect(&self.server)?;
        connections.servers.push(server.try_clone()?);
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || {
            pass(from, &to);
            let _ = to.shutdown(Shutdown::Both);
        });
        thread::spawn(move || {
            pass(server, &client);
            shared.flood(client);
        });
        Ok(())
    }

    /// Sends without end if the flood has begun, and closes the connection.
    fn flood(&self, mut client: UnixStream) {
        let water = self.connections().water;
        if let Some(Water { head, piece }) = water {
            let pieces = piece.repeat(64 * 1024 / piece.len());
            let mut sent = client.write_all(head.as_bytes());
            while sent.is_ok() {
                sent = client.write_all(pieces.as_bytes());
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    }
}

fn pass(mut from: UnixStream, mut to: &UnixStream) {
    let mut buffer = [0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}
