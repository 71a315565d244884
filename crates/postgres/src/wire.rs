//! Builds the messages to a server and takes those from it apart.
//!
//! Every statement is unnamed and its values are parameters: a pooler hands each transaction to
//! another server, which knows no names, and nothing has to be quoted.

use bytes::{BufMut, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, ErrorFields};
use postgres_protocol::message::frontend;
use postgres_protocol::types::{ArrayDimension, array_to_sql};
use postgres_protocol::{IsNull, Oid};

use super::failure::ErrorKind;

/// A parameter of a statement.
pub(super) enum Param<'p> {
    Text(&'p str),
    Int(i32),
    Keys(Vec<&'p [u8]>),
    Texts(Vec<&'p str>),
    Longs(Vec<Option<i64>>),
    Ints(Vec<Option<i32>>),
}

/// The numbers of the types, which no server changes.
const TEXT: Oid = 25;
const BYTEA: Oid = 17;
const INT4: Oid = 23;
const INT8: Oid = 20;
const TEXTS: Oid = 1009;
const BYTEAS: Oid = 1001;
const INT4S: Oid = 1007;
const INT8S: Oid = 1016;

impl Param<'_> {
    fn oid(&self) -> Oid {
        match self {
            Self::Text(_) => TEXT,
            Self::Int(_) => INT4,
            Self::Keys(_) => BYTEAS,
            Self::Texts(_) => TEXTS,
            Self::Longs(_) => INT8S,
            Self::Ints(_) => INT4S,
        }
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Text(text) => out.put_slice(text.as_bytes()),
            Self::Int(number) => out.put_i32(*number),
            Self::Keys(keys) => array(BYTEA, keys, out, |key, out| {
                out.put_slice(key);
                IsNull::No
            }),
            Self::Texts(texts) => array(TEXT, texts, out, |text, out| {
                out.put_slice(text.as_bytes());
                IsNull::No
            }),
            Self::Longs(numbers) => array(INT8, numbers, out, |number, out| match number {
                Some(number) => {
                    out.put_i64(*number);
                    IsNull::No
                }
                None => IsNull::Yes,
            }),
            Self::Ints(numbers) => array(INT4, numbers, out, |number, out| match number {
                Some(number) => {
                    out.put_i32(*number);
                    IsNull::No
                }
                None => IsNull::Yes,
            }),
        }
    }
}

fn array<T>(oid: Oid, items: &[T], out: &mut BytesMut, mut write: impl FnMut(&T, &mut BytesMut) -> IsNull) {
    let len = i32::try_from(items.len()).expect("a batch has fewer rows");
    let dimension = (len > 0).then_some(ArrayDimension { len, lower_bound: 1 });
    array_to_sql(dimension, oid, items, |item, out| Ok(write(item, out)), out).expect("an array fits into a message");
}

/// The message of this kind was written by this process and is within the limits.
const FITS: &str = "a statement fits into a message";

/// Appends a statement with its parameters. Its rows come in binary.
pub(super) fn statement(sql: &str, params: &[Param<'_>], out: &mut BytesMut) {
    frontend::parse("", sql, params.iter().map(Param::oid), out).expect(FITS);
    let write = |param: &Param<'_>, out: &mut BytesMut| {
        param.write(out);
        Ok(IsNull::No)
    };
    if frontend::bind("", "", [1], params, write, [1], out).is_err() {
        unreachable!("{FITS}");
    }
    frontend::execute("", 0, out).expect(FITS);
}

/// Ends statements that are carried out together or not at all.
pub(super) fn sync(out: &mut BytesMut) {
    frontend::sync(out);
}

/// Appends statements without parameters, each on its own if one of them begins no transaction.
pub(super) fn query(sql: &str, out: &mut BytesMut) {
    frontend::query(sql, out).expect(FITS);
}

/// The columns of a row, `None` for NULL.
pub(super) fn columns(row: &DataRowBody) -> Result<Vec<Option<&[u8]>>, ErrorKind> {
    let buffer = row.buffer();
    row.ranges().map(|range| Ok(range.map(|range| &buffer[range]))).collect().map_err(|_| ErrorKind::UnexpectedReply)
}

/// An integer of eight bytes.
pub(super) fn long(column: Option<&[u8]>) -> Option<i64> {
    column?.try_into().ok().map(i64::from_be_bytes)
}

/// An integer of four bytes.
pub(super) fn int(column: Option<&[u8]>) -> Option<i32> {
    column?.try_into().ok().map(i32::from_be_bytes)
}

/// An error of the server.
#[derive(Debug, Default)]
pub(super) struct ServerError {
    /// The SQLSTATE.
    pub(super) code: String,
    pub(super) text: String,
    /// Whether the server ends the connection after it.
    pub(super) is_fatal: bool,
}

/// Takes an error apart.
pub(super) fn error(fields: ErrorFields<'_>) -> ServerError {
    let mut error = ServerError::default();
    // What cannot be read is an error all the same.
    let _ = fields.for_each(|field| {
        let value = || String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => error.code = value(),
            b'M' => error.text = value(),
            // The one is translated, and a pooler sends no other.
            b'S' | b'V' => error.is_fatal |= matches!(&*value(), "FATAL" | "PANIC"),
            _ => {}
        }
        Ok(())
    });
    error
}
