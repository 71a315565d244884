//! Reads a whole table that another program may have changed: first its pages, as LMDB's structs
//! MDB_page, MDB_node, MDB_db and MDB_meta describe them, then its records.
//!
//! LMDB follows every page number and offset, even into a fatal signal, a loop or foreign memory.
//! The lock model, too, assumes that the statements of one record about another are true. This
//! check accepts only tables that LMDB 0.9.7x and the model leave behind.
//!
//! Numbers have the byte order of the machine; page numbers and sizes are as wide as its addresses.

mod records;

use super::file::TABLE_BYTES_MAX;
use super::lmdb::Item;
use rlock_store::records::codec::{Damaged, ensure};

/// The width of page numbers and sizes.
const WORD: usize = size_of::<usize>();
/// The length of a page header. The header has the page's number, padding, flags, and either the
/// two ends of the free space or the number of overflow pages.
const PAGE_HEADER: usize = WORD + 8;
/// The length of a node header. The header has a size or a page number, flags, and the size of the
/// key.
const NODE_HEADER: usize = 8;
/// The length of a tree's description.
const DB: usize = 8 + 5 * WORD;
/// The offset of the two tree descriptions in the content of a meta page; the fields after them
/// follow.
const META_DBS: usize = 8 + 2 * WORD;
const META_LAST_PAGE: usize = META_DBS + 2 * DB;
const META_TXN: usize = META_LAST_PAGE + WORD;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
const META: u16 = 0x08;
/// The node's value lies on overflow pages.
const BIG: u16 = 0x01;

const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
/// The flags of the list of free pages in a file without subfolder and with integer keys. LMDB
/// never writes other flags there.
const FREE_FLAGS: u16 = 0x4008;
/// The number that stands for no page: the root of an empty tree.
const NONE: usize = usize::MAX;
/// Maximum depth of a tree; LMDB's cursors go no deeper.
const DEPTH_MAX: usize = 32;
const META_PAGES: usize = 2;

/// Makes sure that these bytes are a table of LMDB with rlock's records. Returns the number of its
/// last transaction.
pub(super) fn table(bytes: &[u8]) -> Result<u64, Damaged> {
    let (transaction, items) = read(bytes)?;
    records::check(&items)?;
    Ok(transaction)
}

/// Returns the number of the last transaction, and the keys and values of the table, in order.
/// Fails unless every page is valid.
fn read(bytes: &[u8]) -> Result<(u64, Vec<Item<'_>>), Damaged> {
    let size = u32_at(bytes, PAGE_HEADER + META_DBS)? as usize;
    ensure(size.is_power_of_two() && (4096..=32768).contains(&size))?;
    let metas = [meta(bytes, size, 0)?, meta(bytes, size, 1)?];
    let current = usize::from(metas[0].txn < metas[1].txn);
    let Meta { last_page, txn, free, main } = metas[current];
    // The next transaction writes to the other meta page.
    ensure(txn % 2 == current && txn <= usize::MAX / 2 && last_page >= META_PAGES - 1)?;
    let pages = last_page.checked_add(1).filter(|pages| *pages <= TABLE_BYTES_MAX / size).ok_or(Damaged)?;
    let mut file = File { bytes, size, used: vec![false; pages] };
    file.used[..META_PAGES].fill(true);
    let free = file.tree(free, |one, other| number(one) < number(other))?;
    let main = file.tree(main, |one, other| one < other)?;
    for (key, value) in free {
        file.take_free(key, value, txn)?;
    }
    Ok((txn as u64, main))
}

struct Meta {
    last_page: usize,
    txn: usize,
    free: Db,
    main: Db,
}

#[derive(Clone, Copy)]
struct Db {
    flags: u16,
    depth: usize,
    entries: usize,
    root: usize,
}

fn meta(bytes: &[u8], size: usize, page: usize) -> Result<Meta, Damaged> {
    let bytes = bytes.get(page * size..(page + 1) * size).ok_or(Damaged)?;
    let content = &bytes[PAGE_HEADER..];
    let flags = u16_at(bytes, WORD + 2)?;
    let address = word_at(content, 8)?;
    let psize = u32_at(content, META_DBS)? as usize;
    let header = (flags, u32_at(content, 0)?, u32_at(content, 4)?, address, psize);
    ensure(header == (META, MAGIC, VERSION, 0, size))?;
    let (free, main) = (db(content, META_DBS)?, db(content, META_DBS + DB)?);
    ensure((free.flags, main.flags) == (FREE_FLAGS, 0))?;
    Ok(Meta { last_page: word_at(content, META_LAST_PAGE)?, txn: word_at(content, META_TXN)?, free, main })
}

fn db(content: &[u8], at: usize) -> Result<Db, Damaged> {
    Ok(Db {
        flags: u16_at(content, at + 4)?,
        depth: usize::from(u16_at(content, at + 6)?),
        entries: word_at(content, at + 8 + 3 * WORD)?,
        root: word_at(content, at + 8 + 4 * WORD)?,
    })
}

struct File<'b> {
    bytes: &'b [u8],
    size: usize,
    /// Which pages were visited. A page is visited at most once, so no walk is endless.
    used: Vec<bool>,
}

struct Walk<'b> {
    depth: usize,
    is_before: fn(&[u8], &[u8]) -> bool,
    items: Vec<Item<'b>>,
}

impl<'b> File<'b> {
    fn tree(&mut self, db: Db, is_before: fn(&[u8], &[u8]) -> bool) -> Result<Vec<Item<'b>>, Damaged> {
        let mut walk = Walk { depth: db.depth, is_before, items: Vec::new() };
        if db.root == NONE {
            ensure(db.depth == 0)?;
        } else {
            ensure((1..=DEPTH_MAX).contains(&db.depth))?;
            self.page(db.root, 1, None, &mut walk)?;
        }
        ensure(walk.items.len() == db.entries)?;
        Ok(walk.items)
    }

    /// Walks through a page and the pages below it, where no key may be before `from`.
    fn page(&mut self, page: usize, level: usize, from: Option<&'b [u8]>, walk: &mut Walk<'b>) -> Result<(), Damaged> {
        let bytes = self.take(page, 1)?;
        let leaf = level == walk.depth;
        ensure(u16_at(bytes, WORD + 2)? == if leaf { LEAF } else { BRANCH })?;
        let nodes = nodes(bytes, leaf)?;
        ensure(nodes.len() >= if leaf { 1 } else { 2 })?;
        for (at, node) in nodes.into_iter().enumerate() {
            if leaf {
                let ordered = walk.items.last().is_none_or(|(last, _)| (walk.is_before)(last, node.key));
                ensure(!node.key.is_empty() && ordered)?;
                ensure(from.is_none_or(|from| !(walk.is_before)(node.key, from)))?;
                let value = self.value(&node)?;
                walk.items.push((node.key, value));
            } else {
                // The first key of a branch is ignored: it stands for all smaller keys.
                let from = if at == 0 { from } else { Some(node.key) };
                if let (1.., Some((last, _)), Some(from)) = (at, walk.items.last(), from) {
                    ensure((walk.is_before)(last, from))?;
                }
                self.page(node.child(), level + 1, from, walk)?;
            }
        }
        Ok(())
    }

    fn value(&mut self, node: &Node<'b>) -> Result<&'b [u8], Damaged> {
        if node.flags != BIG {
            return Ok(node.data);
        }
        let first = word_at(node.data, 0)?;
        let header = first.checked_mul(self.size).and_then(|at| self.bytes.get(at..)).ok_or(Damaged)?;
        // There may be more pages than the value needs, because the value was longer before.
        let count = u32_at(header, WORD + 4)? as usize;
        let bytes = self.take(first, count)?;
        ensure(u16_at(bytes, WORD + 2)? == OVERFLOW)?;
        bytes.get(PAGE_HEADER..PAGE_HEADER + node.number).ok_or(Damaged)
    }

    /// Marks pages as used, and returns their bytes. Fails if one of them is already in use.
    fn take(&mut self, first: usize, count: usize) -> Result<&'b [u8], Damaged> {
        let end = first.checked_add(count).ok_or(Damaged)?;
        let used = self.used.get_mut(first..end).ok_or(Damaged)?;
        ensure(!used.contains(&true))?;
        used.fill(true);
        let bytes = self.bytes.get(first * self.size..end * self.size).ok_or(Damaged)?;
        ensure(word_at(bytes, 0)? == first)?;
        Ok(bytes)
    }

    /// Takes the pages that a transaction gave up. The value is their count and their numbers, in
    /// falling order.
    fn take_free(&mut self, key: &[u8], value: &[u8], txn: usize) -> Result<(), Damaged> {
        let count = word_at(value, 0)?;
        ensure(key.len() == WORD && number(key) <= txn && count < value.len() / WORD)?;
        let mut before = NONE;
        for at in 1..=count {
            let page = word_at(value, at * WORD)?;
            let used = self.used.get_mut(page).ok_or(Damaged)?;
            ensure(page < before && !std::mem::replace(used, true))?;
            before = page;
        }
        Ok(())
    }
}

struct Node<'b> {
    /// The size of the value, or the lower half of a page number.
    number: usize,
    flags: u16,
    key: &'b [u8],
    /// The value, or the number of its first overflow page.
    data: &'b [u8],
}

impl Node<'_> {
    /// The number of the page below a node of a branch.
    fn child(&self) -> usize {
        // On a machine with 32-bit addresses, the flags are not part of the page number.
        self.number | usize::from(self.flags).checked_shl(32).unwrap_or(0)
    }
}

/// Returns the nodes of a page. The nodes must fill the end of the page without a gap.
fn nodes(page: &[u8], leaf: bool) -> Result<Vec<Node<'_>>, Damaged> {
    let (lower, upper) = (usize::from(u16_at(page, WORD + 4)?), usize::from(u16_at(page, WORD + 6)?));
    ensure(PAGE_HEADER <= lower && lower <= upper && upper <= page.len())?;
    ensure((lower - PAGE_HEADER).is_multiple_of(2))?;
    let node_max = ((page.len() - PAGE_HEADER) / 2) & !1;
    let mut nodes = Vec::with_capacity((lower - PAGE_HEADER) / 2);
    let mut places = Vec::with_capacity(nodes.capacity());
    for pointer in (PAGE_HEADER..lower).step_by(2) {
        let start = usize::from(u16_at(page, pointer)?);
        ensure(start >= upper && start.is_multiple_of(2))?;
        let bytes = page.get(start..).ok_or(Damaged)?;
        let (number, flags) = (u32_at(bytes, 0)? as usize, u16_at(bytes, 4)?);
        let key_len = usize::from(u16_at(bytes, 6)?);
        let data_len = match (leaf, flags) {
            (false, _) => 0,
            (true, 0) => number,
            (true, BIG) => WORD,
            _ => return Err(Damaged),
        };
        let key = bytes.get(NODE_HEADER..NODE_HEADER + key_len).ok_or(Damaged)?;
        let data = bytes[NODE_HEADER + key_len..].get(..data_len).ok_or(Damaged)?;
        let len = NODE_HEADER + key_len + data_len;
        ensure(len <= node_max)?;
        places.push((start, len + len % 2));
        nodes.push(Node { number, flags, key, data });
    }
    places.sort_unstable();
    let end = places.iter().try_fold(upper, |end, (start, len)| (*start == end).then_some(end + len));
    ensure(end == Some(page.len()))?;
    Ok(nodes)
}

/// Reads a key of the list of free pages, which is a transaction number.
fn number(key: &[u8]) -> usize {
    word_at(key, 0).unwrap_or(NONE)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Damaged> {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied().ok_or(Damaged)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Damaged> {
    array(bytes, at).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Damaged> {
    array(bytes, at).map(u32::from_ne_bytes)
}

fn word_at(bytes: &[u8], at: usize) -> Result<usize, Damaged> {
    array(bytes, at).map(usize::from_ne_bytes)
}
