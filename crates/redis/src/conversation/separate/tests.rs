//! Tests the promises to each session, over connections that fail one by one.

use super::super::testing::*;
use super::*;
use crate::interface::{Action, Conversation, Event, Transport};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// The route of a session, which connects at once unless it looks for the server.
#[derive(Default)]
struct Route {
    is_locating: bool,
    arrives: VecDeque<Event>,
    /// The actions that nobody has looked at.
    actions: Vec<String>,
}

impl Transport for Route {
    fn perform(&mut self, action: Action, conversation: &mut impl Conversation, now: Boottime) {
        self.actions.push(described(&action));
        match action {
            Action::Open(_) if !self.is_locating => conversation.on(Event::Connecting(node(1)), now),
            Action::ReportTimeout => conversation.on(timed_out(), now),
            _ => {}
        }
    }

    fn next_event(&mut self, _now: Boottime) -> Option<Event> {
        self.arrives.pop_front()
    }
}

struct World {
    conversations: SeparateConversations<Route>,
    now: Boottime,
}

const fn id(number: u8) -> SessionId {
    SessionId([number; 16])
}

impl World {
    fn new() -> Self {
        Self { conversations: SeparateConversations::new(CONNECT_TIMEOUT), now: START }
    }

    /// A world with these sessions, each of which has sent its request.
    fn asking(sessions: u8) -> Self {
        let mut world = Self::new();
        for number in 1..=sessions {
            world.acquire(Request { session: id(number), ..request() });
            assert_eq!(world.advance(), format!("{number}: open 0, acquire"));
        }
        world
    }

    /// A world with these sessions, each of which holds its lock.
    fn held(sessions: u8) -> Self {
        let mut world = Self::asking(sessions);
        for number in 1..=sessions {
            world.arrives(number, granted());
            world.advance();
            assert_eq!(world.reports(), format!("{number} granted"));
        }
        world
    }

    fn acquire(&mut self, request: Request) {
        self.conversations.acquire(request, exchange(CLUSTER), Route::default(), self.now);
    }

    fn release(&mut self, number: u8) {
        self.conversations.release(id(number), self.now);
    }

    fn arrives(&mut self, number: u8, event: Event) {
        let (_, route) = self.conversations.sessions.get_mut(&id(number)).expect("the session is known");
        route.arrives.push_back(event);
    }

    /// Lets all sessions go on; returns the actions of each.
    fn advance(&mut self) -> String {
        let now = self.now;
        let mut all = Vec::new();
        self.conversations.advance(now, |id, part, route| {
            match part {
                Some(Part::Request(hold)) => route.drive(hold, now),
                Some(Part::Release(question)) => route.drive(question, now),
                None => {}
            }
            if !route.actions.is_empty() {
                all.push(format!("{}: {}", id.0[0], std::mem::take(&mut route.actions).join(", ")));
            }
        });
        all.join("; ")
    }

    fn reports(&mut self) -> String {
        let reports = std::iter::from_fn(|| self.conversations.next_report());
        let text = |(id, report): (SessionId, sessions::Report)| {
            let word = match report {
                sessions::Report::Standing(Ok(Standing::Granted(_))) => "granted".to_owned(),
                sessions::Report::Standing(Ok(standing)) => format!("{standing:?}").to_lowercase(),
                sessions::Report::Standing(Err(error)) => format!("failed: {error}"),
                sessions::Report::Released(Ok(released)) => format!("released: {released:?}").to_lowercase(),
                sessions::Report::Released(Err(_)) => "not released".to_owned(),
            };
            format!("{} {word}", id.0[0])
        };
        reports.map(text).collect::<Vec<_>>().join(", ")
    }

    fn is_idle(&self) -> bool {
        self.conversations.sessions.is_empty() && self.conversations.timeout().is_none()
    }
}

fn released() -> Event {
    reply(&["released", "7", "8"])
}

#[test]
fn release_goes_on_while_others_are_made_and_answered() {
    let mut world = World::held(3);
    world.release(1);
    world.release(2);
    assert_eq!(world.conversations.timeout(), Some(Boottime::default()), "a release is due at once");
    assert_eq!(world.advance(), "1: release; 2: release");
    world.arrives(2, released());
    assert_eq!(world.advance(), "");
    assert_eq!(world.reports(), "2 released: done");
    // The node of the first session is silent, and the third session renews its lease in time.
    world.now = START + MS(1000);
    assert_eq!(world.advance(), "1: report timeout, set aside; 3: subscribe, renew");
    world.arrives(3, granted());
    world.now = START + TTL / 3 + MS(1000);
    assert_eq!(world.advance(), "1: report timeout, close, read aside; 3: renew");
    assert_eq!(world.reports(), "1 not released, 3 granted");
    assert_eq!(world.conversations.sessions.len(), 1);
}

/// "nothing else is reported about the session from now on"
#[test]
fn released_session_has_no_other_report_and_an_earlier_loss_is_its_result() {
    for (event, expected) in [(granted(), "1 released: done"), (reply(&["unknown"]), "1 released: lost")] {
        let mut world = World::held(1);
        world.now = START + TTL / 3;
        assert_eq!(world.advance(), "1: subscribe, renew");
        world.arrives(1, event);
        world.advance();
        world.release(1);
        world.advance();
        let early = world.reports();
        if !world.conversations.sessions.is_empty() {
            world.arrives(1, released());
            world.advance();
        }
        assert_eq!(early + &world.reports(), expected);
        assert!(world.is_idle());
    }
}

#[test]
fn lost_or_failed_request_is_given_back_without_a_report() {
    for (event, expected) in [(reply(&["unknown"]), "1 lost"), (reply(&["granted", "30000000", "9", "9"]), "1 lost")] {
        let mut world = World::held(1);
        world.now = START + TTL / 3;
        assert_eq!(world.advance(), "1: subscribe, renew");
        world.arrives(1, event);
        assert_eq!(world.advance(), "1: release");
        assert_eq!(world.reports(), expected);
        world.arrives(1, released());
        world.advance();
        assert_eq!(world.reports(), "");
        assert!(world.is_idle());
    }
}

/// A release that is under way already releases what a client wants to see released.
#[test]
fn release_of_a_session_that_is_over_or_unknown_is_done_at_once() {
    let mut world = World::asking(1);
    world.arrives(1, busy());
    assert_eq!(world.advance(), "");
    assert_eq!(world.reports(), "1 busy { obstructions: [], streak: none }");
    world.release(1);
    assert_eq!(world.reports(), "1 released: done");

    let mut world = World::held(1);
    world.now = START + TTL / 3;
    world.advance();
    world.arrives(1, reply(&["unknown"]));
    world.advance();
    assert_eq!(world.reports(), "1 lost");
    world.release(1);
    assert_eq!(world.reports(), "1 released: done");
    assert!(!world.is_idle(), "the server may still keep something");
}

#[test]
fn release_of_an_unanswered_request_follows_it_on_its_connection() {
    let mut world = World::asking(1);
    world.release(1);
    assert_eq!(world.advance(), "1: release");
    world.arrives(1, granted());
    assert_eq!(world.advance(), "");
    assert_eq!(world.reports(), "");
    world.arrives(1, released());
    world.advance();
    assert_eq!(world.reports(), "1 released: done");
    assert!(world.is_idle());
}

#[test]
fn release_of_a_request_that_never_left_sends_nothing() {
    let mut world = World::new();
    let route = Route { is_locating: true, ..Route::default() };
    world.conversations.acquire(request(), exchange(CLUSTER), route, START);
    assert_eq!(world.advance(), "1: open 0, acquire");
    world.release(1);
    assert_eq!(world.advance(), "");
    assert_eq!(world.reports(), "1 released: done");
    assert!(world.is_idle());
}

#[test]
fn release_follows_a_redirect() {
    let mut world = World::held(1);
    world.release(1);
    assert_eq!(world.advance(), "1: release");
    world.arrives(1, error_reply("MOVED 1 h:2"));
    assert_eq!(world.advance(), "1: close, open h:2, release");
    world.arrives(1, released());
    world.advance();
    assert_eq!(world.reports(), "1 released: done");
}

#[test]
fn request_that_the_store_cannot_take_fails_at_once() {
    let mut world = World::new();
    world.acquire(Request { terms: None, ..request() });
    assert_eq!(world.reports(), "1 failed: a request to this store needs a ttl");
    let mut claims = request().claims;
    claims[1].resource = resource("b");
    world.acquire(Request { claims, ..request() });
    assert!(world.reports().starts_with("1 failed: '{t}a' and 'b' are in different slots of the cluster"));
    assert!(world.is_idle());
}
