//! Builds the messages to a server and takes those from it apart.
//!
//! A message is one Query, whatever its number of statements: the server carries out nothing before
//! it has the last byte. Statements that follow each other as messages of their own would let it
//! wait for the next one in the middle of a transaction, where no timeout counts.

use std::fmt::{Display, Write as _};
use std::str::FromStr;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, ErrorFields};
use postgres_protocol::message::frontend;

use super::failure::ErrorKind;

/// Appends a statement to those of a message. Each `$1` to `$9` in it stands for a literal.
pub(super) fn statement(sql: &str, literals: &[String], out: &mut String) {
    let mut parts = sql.split('$');
    out.extend(parts.next());
    for part in parts {
        let number = part.chars().next().and_then(|digit| digit.to_digit(10)).expect("a digit follows each $");
        out.extend([&literals[number as usize - 1], &part[1..]]);
    }
    out.push_str("; ");
}

/// The literal of a text. In this form, no setting of the server changes what a backslash means.
pub(super) fn text(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// The literal of an array. Its items have no character that an array needs to be quoted.
pub(super) fn array(items: impl IntoIterator<Item = impl Display>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    text(&format!("{{{}}}", items.join(",")))
}

/// The literal of an array of numbers, some of which may be missing.
pub(super) fn numbers(numbers: impl IntoIterator<Item = Option<impl Display>>) -> String {
    array(numbers.into_iter().map(|number| number.map_or_else(|| "NULL".to_owned(), |number| number.to_string())))
}

/// The literal of an array of bytea.
pub(super) fn keys<'k>(keys: impl IntoIterator<Item = &'k [u8]>) -> String {
    array(keys.into_iter().map(|key| {
        let mut literal = r"\\x".to_owned();
        key.iter().for_each(|byte| write!(literal, "{byte:02x}").expect("a string takes all"));
        literal
    }))
}

/// The message of these statements. If none of them begins a transaction, they are one.
pub(super) fn query(sql: &str) -> BytesMut {
    let mut out = BytesMut::new();
    frontend::query(sql, &mut out).expect("the statements have no NUL and fit into a message");
    out
}

/// The columns of a row, `None` for NULL.
pub(super) fn columns(row: &DataRowBody) -> Result<Vec<Option<&[u8]>>, ErrorKind> {
    let buffer = row.buffer();
    row.ranges().map(|range| Ok(range.map(|range| &buffer[range]))).collect().map_err(|_| ErrorKind::UnexpectedReply)
}

/// A number, which comes as text.
pub(super) fn number<T: FromStr>(column: Option<&[u8]>) -> Option<T> {
    std::str::from_utf8(column?).ok()?.parse().ok()
}

/// Bytes, which come as hexadecimal digits.
pub(super) fn bytes(column: Option<&[u8]>) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0])? << 4 | digit(*pair.get(1)?)?).ok();
    column?.chunks(2).map(byte).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_means_its_text_whatever_that_has() {
        assert_eq!(text(r"a'b\c$1"), r"E'a''b\\c$1'");
        let mut sent = String::new();
        statement("SELECT $2, $1", &[text("$2"), keys([&[0, 255][..], b"'"])], &mut sent);
        assert_eq!(sent, r"SELECT E'{\\\\x00ff,\\\\x27}', E'$2'; ");
        assert_eq!(numbers([Some(-1), None]), "E'{-1,NULL}'");
    }

    #[test]
    fn digits_that_are_no_bytes_are_refused() {
        assert_eq!(bytes(Some(b"00fF")), Some(vec![0, 255]));
        for column in [None, Some(&b"0"[..]), Some(b"0g"), Some(b"+1")] {
            assert_eq!(bytes(column), None);
        }
    }
}
