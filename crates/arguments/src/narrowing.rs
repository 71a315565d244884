//! The words of `shrink` and `downgrade`, on the command line and in the lines of clients of
//! `rlock serve`.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::claims;
use super::mistake::Mistake;
use super::values;
use rlock_model::mode::Mode;
use rlock_model::resource::Resource;
use rlock_model::span::Span;

/// What `shrink` is told.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[group(skip)]
pub struct Shrink {
    /// The new lower end, or the whole interval: '[1.2,1.8)'.
    #[arg(id = "LO", value_parser = values::plain)]
    lo: String,
    /// The new upper end.
    #[arg(id = "HI", value_parser = values::plain)]
    hi: Option<String>,
    /// Which lock, where the command holds several.
    #[arg(long, value_name = "KEY", value_parser = values::resource)]
    pub resource: Option<Resource>,
    /// Say what was shrunk.
    #[arg(short, long)]
    pub verbose: bool,
}

impl Shrink {
    /// The remaining part of the held span.
    pub fn span(&self) -> Result<Span, Mistake> {
        claims::span(Some(&self.lo), self.hi.as_deref())
    }
}

/// What `downgrade` is told.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[group(skip)]
pub struct Downgrade {
    /// The new mode.
    #[arg(id = "MODE", value_parser = modes())]
    pub mode: Mode,
    /// Which lock, where the command holds several.
    #[arg(long, value_name = "KEY", value_parser = values::resource)]
    pub resource: Option<Resource>,
    /// Say what was lowered.
    #[arg(short, long)]
    pub verbose: bool,
}

/// The modes to lower a hold to. The store judges `write` as it judges a prewrite for a read. Being
/// an alias keeps the word out of help and completions.
fn modes() -> impl TypedValueParser<Value = Mode> {
    let modes = [PossibleValue::new("read"), PossibleValue::new("prewrite").alias("write")];
    PossibleValuesParser::new(modes).map(|mode| mode.parse().expect("clap takes only the modes of the list"))
}
