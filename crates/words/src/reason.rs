//! The text of an error.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// The text of an error. The system's own words, which start in upper case, are in lower case, and
/// their number is left out.
pub fn reason(error: &(dyn Error + 'static)) -> String {
    let errno = error.downcast_ref().copied().or_else(|| Errno::from_io_error(error.downcast_ref::<io::Error>()?));
    let Some(errno) = errno else { return error.to_string() };
    let text = errno::Errno(errno.raw_os_error()).to_string();
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}
