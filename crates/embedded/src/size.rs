//! How large the table and its file become.

/// The maximum size of the table in bytes, enough for some hundred thousand claims.
pub(super) const TABLE_BYTES_MAX: usize = 256 << 20;
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

/// The bytes by which LMDB's map exceeds twice the file at least. A transaction adds less than this
/// and rewrites no more than the whole table.
const MAP_GROWTH_BYTES: usize = 16 << 20;

/// The size of LMDB's map of a file of so many bytes. The map takes addresses, which `ulimit -v`
/// and schedulers limit, so it is not the maximum at once.
pub(super) fn map_bytes(file: usize) -> usize {
    file.saturating_mul(2).saturating_add(MAP_GROWTH_BYTES).next_multiple_of(MAP_GROWTH_BYTES).min(TABLE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_has_room_to_rewrite_the_whole_table() {
        for (file, map) in [(0, 16), (1, 32), (16, 48), (100, 224), (120, 256), (256, 256)] {
            assert_eq!(map_bytes(file << 20), map << 20, "{file} MiB");
        }
    }
}
