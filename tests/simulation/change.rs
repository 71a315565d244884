//! An `rlock shrink` or `rlock downgrade`, which a command runs to give up a part of its lock, or
//! an `rlock cleanup --break`, which takes away the locks of others.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::route;
use super::task::Site;
use crate::store::redis::codec::Call;
use crate::store::redis::conversation::Retry;

/// Asks the store for a change, until it answers or a signal ends the process. Nobody looks at the
/// result.
pub(super) async fn run(site: &Site, call: Call) {
    site.world().enter(site.task);
    site.world().note(|| format!("task {}: {call:?}", site.task));
    let mut asking = pin!(route::ask(site, call, Retry::WhileDown));
    poll_fn(|context| {
        let is_ended = !site.world().mailboxes[site.task].signals.is_empty();
        if is_ended { Poll::Ready(()) } else { asking.as_mut().poll(context).map(drop) }
    })
    .await;
    site.world().end(site.task);
}
