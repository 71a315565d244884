//! The listings that clients have not read yet. All who ask at the same time share one listing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes may be unread before the next listing is made. Clients that read slowly must not
/// fill the memory.
pub(super) const BYTES_MAX: usize = 64 << 20;

/// Counts the bytes of the listings that some client still reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Unread(Arc<AtomicUsize>);

impl Unread {
    /// Whether so much is unread that nobody gets another listing.
    pub(super) fn is_full(&self) -> bool {
        self.bytes() > BYTES_MAX
    }

    /// The number of bytes, however many clients read them.
    fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// A listing that counts until the last client drops it.
    pub(super) fn listing(&self, mut text: String) -> Arc<Listing> {
        text.push('\n');
        self.0.fetch_add(text.len(), Ordering::Relaxed);
        Arc::new(Listing { text, unread: self.clone() })
    }
}

/// A line with its end.
#[derive(Debug)]
pub struct Listing {
    text: String,
    unread: Unread,
}

impl Listing {
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.unread.0.fetch_sub(self.text.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_listing_counts_once_until_the_last_client_has_read_it() {
        let unread = Unread::default();
        let first = unread.listing("12345".to_owned());
        let second = Arc::clone(&first);
        let other = unread.listing("123".to_owned());
        assert_eq!((unread.bytes(), first.as_bytes()), (10, &b"12345\n"[..]));
        drop(first);
        assert_eq!(unread.bytes(), 10);
        drop(second);
        drop(other);
        assert_eq!(unread.bytes(), 0);
    }
}
