//! What only a server can show, on each kind of server.
