//! Makes the calls into LMDB that the table needs.
//!
//! The crate heed resolves the path of a file before LMDB opens that file. So anybody who may
//! rename files in the directory decides which file LMDB creates. Here, LMDB opens a descriptor
//! that the caller has checked, by its path below /proc.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::{io, slice};

use lmdb_master_sys as ffi;

use super::failure::Error;
use super::fault;
use rlock_words::{Explained, reason};

/// The file is LMDB's whole environment. The caller is responsible for locks and durability.
const FLAGS: c_uint = ffi::MDB_NOSUBDIR | ffi::MDB_NOLOCK | ffi::MDB_NOTLS | ffi::MDB_NOSYNC | ffi::MDB_NOMETASYNC;
/// The permissions of a file that LMDB creates. LMDB never creates one here.
const MODE: ffi::mdb_mode_t = 0o600;

/// A key and its value.
pub(super) type Item<'t> = (&'t [u8], &'t [u8]);

/// An opened file.
pub(super) struct Env(NonNull<ffi::MDB_env>);

/// A write transaction. A transaction without a commit changes nothing.
pub(super) struct Txn<'e> {
    raw: NonNull<ffi::MDB_txn>,
    database: ffi::MDB_dbi,
    env: PhantomData<&'e Env>,
}

impl Env {
    /// Opens the file of a descriptor, which may grow to `bytes` before [`grow`](Self::grow).
    ///
    /// # Safety
    /// No other process may read or write the file during a transaction, and LMDB must have written
    /// its content.
    pub(super) unsafe fn open(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: LMDB writes a new environment, or null, to the pointer.
        check(unsafe { ffi::mdb_env_create(&raw mut raw) })?;
        let env = Self(NonNull::new(raw).ok_or(Error::Damaged)?);
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| Error::Damaged)?;
        // SAFETY: the environment is new, and the path outlives the call. The caller guarantees the
        // rest.
        let opened = unsafe {
            check(ffi::mdb_env_set_assert(raw, Some(assertion_failed)))
                .and_then(|()| check(ffi::mdb_env_set_mapsize(raw, bytes)))
                .and_then(|()| check(ffi::mdb_env_open(raw, path.as_ptr(), FLAGS, MODE)))
        };
        match opened {
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::NotFound => Err(Error::Io(
                Explained::new("/proc is not mounted, through which its table is opened", "mount it").into(),
            )),
            opened => opened.map(|()| env).map_err(too_few_addresses),
        }
    }

    /// Lets the file grow to `bytes`. No transaction may be running.
    pub(super) fn grow(&self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.info().me_mapsize {
            return Ok(());
        }
        // SAFETY: the environment is open, and transactions of this process have ended.
        check(unsafe { ffi::mdb_env_set_mapsize(self.0.as_ptr(), bytes) }).map_err(too_few_addresses)
    }

    /// The number of the last page that the table uses.
    pub(super) fn last_page(&self) -> usize {
        self.info().me_last_pgno
    }

    /// The number of the last transaction that changed the table.
    pub(super) fn last_transaction(&self) -> u64 {
        self.info().me_last_txnid as u64
    }

    fn info(&self) -> ffi::MDB_envinfo {
        // SAFETY: all zeros are a valid `info`: numbers and a null pointer.
        let mut info: ffi::MDB_envinfo = unsafe { std::mem::zeroed() };
        // SAFETY: the environment is open, and `info` has room for the answer.
        unsafe { ffi::mdb_env_info(self.0.as_ptr(), &raw mut info) };
        info
    }

    /// Begins a transaction. A process may have only one at a time.
    pub(super) fn begin(&self) -> Result<Txn<'_>, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the environment is open, and LMDB writes a new transaction, or null, to the
        // pointer.
        check(unsafe { ffi::mdb_txn_begin(self.0.as_ptr(), ptr::null_mut(), 0, &raw mut raw) })?;
        let mut txn = Txn { raw: NonNull::new(raw).ok_or(Error::Damaged)?, database: 0, env: PhantomData };
        // SAFETY: the transaction is running. A null name stands for the unnamed database that
        // every file has.
        check(unsafe { ffi::mdb_dbi_open(raw, ptr::null(), 0, &raw mut txn.database) })?;
        Ok(txn)
    }
}

/// Replaces LMDB's own handler, which would print a place in LMDB's source and abort.
unsafe extern "C" fn assertion_failed(_: *mut ffi::MDB_env, _: *const c_char) {
    fault::give_up()
}

impl Drop for Env {
    fn drop(&mut self) {
        // SAFETY: transactions borrow the environment, so none is left.
        unsafe { ffi::mdb_env_close(self.0.as_ptr()) };
    }
}

impl Txn<'_> {
    /// The number of pages that the table has now, without free ones.
    pub(super) fn pages(&self) -> Result<usize, Error> {
        // SAFETY: all zeros are a valid `stat`, which has only numbers.
        let mut stat: ffi::MDB_stat = unsafe { std::mem::zeroed() };
        // SAFETY: the transaction is running, and `stat` has room for the answer.
        check(unsafe { ffi::mdb_stat(self.raw.as_ptr(), self.database, &raw mut stat) })?;
        Ok(stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages)
    }

    /// Returns the value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, Error> {
        let (mut key, mut value) = (borrowed(key), borrowed(&[]));
        // SAFETY: the transaction is running. LMDB only reads the key.
        let code = unsafe { ffi::mdb_get(self.raw.as_ptr(), self.database, &raw mut key, &raw mut value) };
        // SAFETY: LMDB found the value. Values stay valid until the next change, which needs a
        // mutable borrow of the transaction.
        found(code).map(|found| found.then(|| unsafe { bytes(value) }))
    }

    /// Sets the value of a key.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let (mut key, mut value) = (borrowed(key), borrowed(value));
        // SAFETY: the transaction is running. LMDB only reads key and value.
        check(unsafe { ffi::mdb_put(self.raw.as_ptr(), self.database, &raw mut key, &raw mut value, 0) })
    }

    /// Removes a key. The key may be missing.
    pub(super) fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        let mut key = borrowed(key);
        // SAFETY: the transaction is running. LMDB only reads the key. A null pointer stands for
        // any value.
        let code = unsafe { ffi::mdb_del(self.raw.as_ptr(), self.database, &raw mut key, ptr::null_mut()) };
        found(code).map(drop)
    }

    /// Returns the first keys that begin with `prefix`, at most so many, in order, with their
    /// values.
    pub(super) fn scan(&self, prefix: &[u8], count: usize) -> Result<Vec<Item<'_>>, Error> {
        let cursor = Cursor::open(self)?;
        let mut all: Vec<Item<'_>> = Vec::new();
        let mut next = cursor.step(ffi::MDB_SET_RANGE, prefix)?;
        while let Some((key, value)) = next.filter(|(key, _)| all.len() < count && key.starts_with(prefix)) {
            // The pages of a damaged tree may form a ring.
            if all.last().is_some_and(|(last, _)| *last >= key) {
                return Err(Error::Damaged);
            }
            all.push((key, value));
            next = cursor.step(ffi::MDB_NEXT, &[])?;
        }
        Ok(all)
    }

    /// Returns the first key that is not before `key`, with its value.
    pub(super) fn first_from(&self, key: &[u8]) -> Result<Option<Item<'_>>, Error> {
        Cursor::open(self)?.step(ffi::MDB_SET_RANGE, key)
    }

    /// Commits the changes.
    pub(super) fn commit(self) -> Result<(), Error> {
        let raw = self.raw;
        std::mem::forget(self);
        // SAFETY: the transaction is running, and `forget` leaves no other owner of it.
        check(unsafe { ffi::mdb_txn_commit(raw.as_ptr()) })
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        // SAFETY: the transaction is running, because a commit forgets the transaction without a
        // drop.
        unsafe { ffi::mdb_txn_abort(self.raw.as_ptr()) };
    }
}

/// A position in the order of the keys.
struct Cursor<'t> {
    raw: NonNull<ffi::MDB_cursor>,
    txn: PhantomData<&'t ()>,
}

impl<'t> Cursor<'t> {
    fn open(txn: &'t Txn<'_>) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the transaction is running, and LMDB writes a new cursor, or null, to the
        // pointer.
        check(unsafe { ffi::mdb_cursor_open(txn.raw.as_ptr(), txn.database, &raw mut raw) })?;
        Ok(Self { raw: NonNull::new(raw).ok_or(Error::Damaged)?, txn: PhantomData })
    }

    fn step(&self, operation: ffi::MDB_cursor_op, key: &[u8]) -> Result<Option<Item<'t>>, Error> {
        let (mut key, mut value) = (borrowed(key), borrowed(&[]));
        // SAFETY: the cursor is open, and its transaction is running. LMDB only reads the key, and
        // writes the addresses of the found key and value.
        let code = unsafe { ffi::mdb_cursor_get(self.raw.as_ptr(), &raw mut key, &raw mut value, operation) };
        // SAFETY: LMDB found both. They stay valid until the next change, which needs a mutable
        // borrow of the transaction.
        found(code).map(|found| found.then(|| unsafe { (bytes(key), bytes(value)) }))
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: the cursor borrows the transaction, so the transaction is still running.
        unsafe { ffi::mdb_cursor_close(self.raw.as_ptr()) };
    }
}

fn borrowed(bytes: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast_mut().cast() }
}

/// Returns the bytes of a value that LMDB has found.
///
/// # Safety
/// The bytes must stay valid and unchanged for `'t`.
unsafe fn bytes<'t>(value: ffi::MDB_val) -> &'t [u8] {
    if value.mv_size == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { slice::from_raw_parts(value.mv_data.cast(), value.mv_size) }
}

fn found(code: c_int) -> Result<bool, Error> {
    if code == ffi::MDB_NOTFOUND { Ok(false) } else { check(code).map(|()| true) }
}

/// Says what limits the addresses for a map.
fn too_few_addresses(error: Error) -> Error {
    match error {
        Error::Io(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            let what = format!("its table can't be mapped: {}", reason(&error));
            Error::Io(Explained::new(what, "end processes, or raise the limit: ulimit -v unlimited").into())
        }
        error => error,
    }
}

/// LMDB's own error codes are negative, and those of the system are positive. As rlock's calls are
/// valid, any LMDB error but a lack of room means damage.
fn check(code: c_int) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        ffi::MDB_MAP_FULL | ffi::MDB_TXN_FULL => Err(Error::Full),
        1.. => Err(Error::Io(io::Error::from_raw_os_error(code))),
        _ => Err(Error::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn table_that_fills_its_map_goes_on_in_a_larger_one() {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: nothing else uses the file.
        let env = unsafe { Env::open(file.as_fd(), 1 << 20) }.unwrap();
        let put = |size: usize| -> Result<(), Error> {
            let mut txn = env.begin()?;
            txn.put(b"k", &vec![7; size])?;
            txn.commit()
        };
        put(9).unwrap();
        assert!(matches!(put(2 << 20), Err(Error::Full)));
        env.grow(8 << 20).unwrap();
        put(2 << 20).unwrap();
        assert_eq!(env.begin().unwrap().get(b"k").unwrap().map(<[u8]>::len), Some(2 << 20));
    }
}
