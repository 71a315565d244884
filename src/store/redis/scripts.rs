//! Holds the scripts that the build script assembles from lua/. Most scripts are the prelude and
//! one operation.

/// A script with its SHA-1, by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    /// The source without the fast path, in parts that several scripts share.
    parts: &'static [&'static str],
    /// The fast path, which stands behind the first two parts.
    fast_path: &'static str,
    sha1: &'static str,
}

impl Script {
    /// The SHA-1 of the source.
    pub(super) fn sha1(&self) -> &'static str {
        self.sha1
    }

    /// The source.
    pub(super) fn source(&self) -> String {
        let (first, rest) = self.parts.split_at(self.parts.len().min(2));
        [first, &[self.fast_path], rest].concat().concat()
    }

    /// The source without the fast path, which has the same effect.
    pub(super) fn general_source(&self) -> String {
        self.parts.concat()
    }
}

include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
