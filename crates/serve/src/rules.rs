//! The settings of a server that hold for all of its clients.

use std::time::Duration;

use glob::Pattern;

use rlock_model::request::Process;
use rlock_model::resource::Resource;
use rlock_sys::clock::Boottime;

/// The settings, which each client consults and none changes.
#[derive(Debug)]
pub struct Rules {
    /// The token that clients must send.
    pub token: Option<String>,
    /// The patterns of the names that clients may lock. If empty, all names.
    pub only: Vec<Pattern>,
    /// Whether the store has leases, so that a hold may be lost.
    pub has_leases: bool,
    /// How long before its deadline a hold counts as lost unless it is renewed.
    pub grace: Duration,
    /// See [`Messages::is_stopped`](rlock_show::messages::Messages::is_stopped).
    pub is_stopped: fn(&Process) -> bool,
}

impl Rules {
    /// Whether clients may lock and see this resource.
    pub fn serves(&self, resource: &Resource) -> bool {
        self.only.is_empty() || self.only.iter().any(|pattern| pattern.matches(resource.as_str()))
    }

    /// The answer about a resource that clients may not lock.
    pub fn refusal(&self, resource: &Resource) -> String {
        let patterns: Vec<_> = self.only.iter().map(Pattern::as_str).collect();
        format!("refused this server does not serve '{resource}': name a KEY that matches {}", patterns.join(" or "))
    }

    /// The instant at which a hold with this deadline counts as lost. A client needs time to stop
    /// its work, because nobody kills it.
    pub(crate) fn overdue_at(&self, deadline: Option<Boottime>) -> Option<Boottime> {
        deadline.map(|deadline| deadline - self.grace)
    }
}
