//! Builds sample values for the tests of the model.

use super::mode::Mode;
use super::request::{Claim, Job, Process, Request, SessionId};
use super::resource::Resource;
use super::span::Span;

pub(super) fn name(text: &str) -> Resource {
    Resource::new(text).unwrap()
}

/// The span of this text, or the whole resource for an empty text.
pub(super) fn span(text: &str) -> Span {
    if text.is_empty() { Span::Whole } else { Span::parse(text).unwrap() }
}

pub(super) fn id(number: u8) -> SessionId {
    SessionId([number; 16])
}

/// A claim on a part of the resource `r`, or one of its two slots.
pub(super) fn claim(mode: Mode, part: &str) -> Claim {
    Claim { resource: name("r"), mode, span: span(part), slots: (mode == Mode::Slot).then_some(2) }
}

/// A request that waits. The ancestors are listed from the innermost outwards.
pub(super) fn request(session: u8, ancestors: &[u8], claims: &[Claim]) -> Request {
    Request {
        session: id(session),
        ancestors: ancestors.iter().map(|ancestor| id(*ancestor)).collect(),
        claims: claims.to_vec(),
        wait: true,
        terms: None,
        job: Job::default(),
        process: Process::default(),
    }
}
