//! How large the table and its file become.

/// The maximum size of the table in bytes, enough for some hundred thousand claims. LMDB reserves
/// so many addresses; the file is as large as its content.
pub const TABLE_BYTES_MAX: usize = 256 << 20;

/// The size of a page. A machine may have larger pages; then the size check of the table's file is
/// less strict.
pub(super) const PAGE_BYTES: usize = 4096;
/// Maximum number of pages that one transaction rewrites, for which room stays. A request of many
/// names rewrites more in a large table.
const REWRITTEN_PAGES: usize = 192;
/// The number of pages by which the file grows at least.
pub(super) const GROWTH_PAGES: usize = 64;

/// The number of pages that a file with a table of so many pages needs. LMDB never writes over the
/// pages of the last two states, so a transaction and the one before it need room for what they
/// rewrite.
pub(super) fn pages_needed(pages: usize) -> usize {
    pages + 2 * pages.min(REWRITTEN_PAGES) + GROWTH_PAGES / 4
}
