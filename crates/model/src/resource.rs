//! Defines the name of a resource, and checks whether a text is such a name.
//!
//! Each store decides how the name is written in its own namespace. The module `span` says which
//! part of a resource is locked.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::text::Unprintable;

/// The named thing that is locked: UTF-8 text of 1 to `Resource::MAX_BYTES` bytes without control
/// or format characters.
///
/// Names are compared byte by byte; no name is trimmed, folded or normalised. Clones share the
/// text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Resource(Arc<str>);

impl Resource {
    /// Maximum length of a name, in bytes of UTF-8.
    pub(crate) const MAX_BYTES: usize = 512;
    /// The name of the resource of which files and folders are parts, see
    /// [`Span::path`](super::span::Span::path).
    pub const PATHS: &str = "/";

    /// The resource with this name.
    ///
    /// # Errors
    /// The name is empty, is longer than `Resource::MAX_BYTES`, or has a control or format
    /// character.
    pub fn new(name: &str) -> Result<Resource, ResourceError> {
        if name.is_empty() {
            return Err(ResourceError::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(ResourceError::TooLong { bytes: name.len() });
        }
        match Unprintable::find(name) {
            Some(found) => Err(ResourceError::Unprintable(found)),
            None => Ok(Resource(name.into())),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Resource {
    type Error = ResourceError;

    fn try_from(name: String) -> Result<Self, ResourceError> {
        Self::new(&name)
    }
}

impl From<Resource> for String {
    fn from(name: Resource) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The reason why a text cannot name a resource.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResourceError {
    /// The text is empty.
    #[error("a resource name must not be empty")]
    Empty,
    /// The text is longer than `Resource::MAX_BYTES`.
    #[error("a resource name may have {} bytes, this one has {bytes}", Resource::MAX_BYTES)]
    TooLong {
        /// The length of the text, in bytes of UTF-8.
        bytes: usize,
    },
    /// The text has a control or format character.
    #[error("the resource name {0}")]
    Unprintable(Unprintable),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(name: &str) -> String {
        Resource::new(name).unwrap_err().to_string()
    }

    #[test]
    fn length_is_counted_in_bytes_from_1_to_512() {
        assert!(Resource::new("a").is_ok());
        assert!(Resource::new(&"a".repeat(512)).is_ok());
        assert!(Resource::new(&"ä".repeat(256)).is_ok());
        assert_eq!(refusal(""), "a resource name must not be empty");
        assert_eq!(refusal(&"a".repeat(600)), "a resource name may have 512 bytes, this one has 600");
        assert_eq!(refusal(&"ä".repeat(257)), "a resource name may have 512 bytes, this one has 514");
    }

    #[test]
    fn control_characters_are_rejected_and_masked_in_the_message() {
        let advice = "leave out control and format characters";
        assert_eq!(refusal("a\nb"), format!("the resource name 'a?b' has the control character U+000A: {advice}"));
        let text = format!("the resource name '?[2J?x' has the control character U+001B: {advice}");
        assert_eq!(refusal("\u{1b}[2J\u{9b}x"), text);
        assert_eq!(refusal("\0\u{7f}"), format!("the resource name '??' has the control character U+0000: {advice}"));
    }

    #[test]
    fn format_characters_are_rejected_with_their_code_point() {
        for (name, code) in
            [("a\u{202E}b", "U+202E"), ("a\u{200B}b", "U+200B"), ("a\u{FEFF}b", "U+FEFF"), ("a\u{E0062}b", "U+E0062")]
        {
            let text = format!(
                "the resource name 'a?b' has the format character {code}: leave out control and format characters"
            );
            assert_eq!(refusal(name), text);
        }
    }

    #[test]
    fn spaces_braces_and_slashes_are_allowed() {
        for name in [" ", "a b", "/var/lib/x", "{tag}:x", "-n", "名前", "e\u{301}"] {
            assert_eq!(Resource::new(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn names_that_look_alike_differ() {
        assert_ne!(Resource::new("é").unwrap(), Resource::new("e\u{301}").unwrap());
        assert_ne!(Resource::new("A").unwrap(), Resource::new("a").unwrap());
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_or_a_one_line_error(name in any::<String>()) {
            match Resource::new(&name) {
                Ok(resource) => prop_assert_eq!(resource.as_str(), name),
                Err(error) => prop_assert!(!error.to_string().contains(crate::text::is_control_or_format)),
            }
        }
    }
}
