//! An rlock that only asks the store for a change: `shrink` and `downgrade`, by which a command
//! gives up a part of its lock, `renew` and `release` of a kept hold, and `cleanup --break`, which
//! revokes the locks of others.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::route;
use super::task::Site;
use rlock_redis::codec::{Call, ScriptReply};
use rlock_redis::conversation::Retry;

/// Asks the store for a change, until it answers or a signal ends the process. Returns the answer,
/// if there is one.
pub(super) async fn run(site: &Site, call: Call) -> Option<ScriptReply> {
    site.world().enter(site.task);
    site.world().note(|| format!("task {}: {call:?}", site.task));
    let mut asking = pin!(route::ask(site, call, Retry::WhileDown));
    let answer = poll_fn(|context| {
        let is_ended = !site.world().mailboxes[site.task].signals.is_empty();
        if is_ended { Poll::Ready(None) } else { asking.as_mut().poll(context).map(Result::ok) }
    })
    .await;
    site.world().end(site.task);
    answer
}
