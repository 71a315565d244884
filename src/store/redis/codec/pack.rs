//! Packs the values that the scripts keep as they are: arrays of numbers and bytes in MessagePack,
//! which every server's Lua can read.

use rmp::encode::{ByteBuf, RmpWrite as _, write_array_len, write_str_len, write_uint};

/// An array under construction.
pub(super) struct Pack {
    bytes: ByteBuf,
}

impl Pack {
    /// Begins an array of so many values.
    pub(super) fn array(len: usize) -> Self {
        let mut pack = Self { bytes: ByteBuf::new() };
        pack.nested(len);
        pack
    }

    /// Begins an array of so many values within the array.
    pub(super) fn nested(&mut self, len: usize) {
        let len = u32::try_from(len).expect("a request has fewer than 2^32 claims");
        let Ok(_) = write_array_len(&mut self.bytes, len);
    }

    /// Adds a number.
    pub(super) fn number(&mut self, number: u64) {
        let Ok(_) = write_uint(&mut self.bytes, number);
    }

    /// Adds bytes, as a text: the Lua of the servers does not know the type for bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).expect("a request is shorter than 4 GiB");
        let Ok(_) = write_str_len(&mut self.bytes, len);
        let Ok(()) = self.bytes.write_bytes(bytes);
    }

    /// Returns the packed array.
    pub(super) fn done(self) -> Vec<u8> {
        self.bytes.into_vec()
    }
}
