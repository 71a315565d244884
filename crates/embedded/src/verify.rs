//! Reads a whole table that another program may have changed: first its pages, then its records.
//!
//! LMDB follows every page number and offset, even into a fatal signal, a loop or foreign memory.
//! The lock model, too, assumes that the statements of one record about another are true. This
//! check accepts only tables that LMDB and the model leave behind.

mod pages;
mod records;

use rlock_store::records::codec::Damaged;

/// Makes sure that these bytes are a table of LMDB with rlock's records. Returns the number of its
/// last transaction.
pub(super) fn table(bytes: &[u8]) -> Result<u64, Damaged> {
    let (transaction, items) = pages::read(bytes)?;
    records::check(&items)?;
    Ok(transaction)
}
