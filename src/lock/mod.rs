//! The lock model: pure, total, and the same under every store.
//!
//! Nothing here has a clock, an environment, files, sockets, processes, threads or randomness; time
//! is an argument. From the bottom:
//!
//! | module | what it is |
//! | --- | --- |
//! | [`text`] | what a terminal obeys or hides, and so no name may hold |
//! | [`resource`], [`endpoint`], [`span`], [`mode`] | what a claim is made of |
//! | [`request`] | claims, sessions, and the process behind one |
//! | [`lease`] | until when a holder may rely on its grant, and when it renews |
//! | [`index`] | the claims on a resource by place |
//! | [`records`] | where the table keeps its state |
//! | [`op`] | what can be asked and what is answered |
//! | `conflict`, `nesting`, `listing` | the one rule; holds of ancestors; who holds and waits |
//! | [`table`] | the lock table |

pub mod endpoint;
pub mod index;
pub mod lease;
pub mod mode;
pub mod op;
pub mod records;
pub mod request;
pub mod resource;
pub mod span;
pub mod table;
pub mod text;

mod conflict;
mod listing;
mod nesting;

#[cfg(test)]
mod samples;
