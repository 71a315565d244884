//! x
pub mod lock;
pub mod store;
mod passwd;
