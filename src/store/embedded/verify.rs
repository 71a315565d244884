//! Reads a whole table that somebody else may have changed: first its pages, then its records.
//!
//! LMDB follows page numbers and offsets wherever they lead: into a signal, a loop or foreign
//! memory. The lock model, too, takes for granted that what one record says of another is true.
//! What passes here is what both of them leave behind.

mod pages;
mod records;

use super::codec::Damaged;

/// Makes sure that these bytes are a table of LMDB with rlock's records.
pub(super) fn table(bytes: &[u8]) -> Result<(), Damaged> {
    records::check(&pages::read(bytes)?)
}
