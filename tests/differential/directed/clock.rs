//! The clock of a resource never goes back, and tokens rise by it also when all that was known of
//! them is lost.

use std::collections::BTreeSet;

use rlock::clock::StoreTime;
use rlock::lock::mode::Mode::{Read, Write};
use rlock::store::redis::codec::{Call, ScriptReply, Wake};

use super::on_each_server;
use crate::party::{NOW, Party, TERMS, id, is_granted, request, resource, tokens, us};
use crate::side::Side;
use crate::support::servers::{Kind, Server};

on_each_server!(
    the_clock_never_goes_back,
    tokens_rise,
    tokens_rise_after_all_is_lost,
    a_lease_that_ended_is_not_renewed_alone
);

fn the_clock_never_goes_back(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "clock", Wake::Nobody);
    assert_eq!(tokens(party.ask(1, Read, "")), [NOW.as_micros()]);
    for step in [Party::release as fn(&mut Party, u32) -> ScriptReply, |party, number| party.renew(number, false)] {
        party.later(us(1_000_000));
        let now = party.now();
        party.ask(2, Read, "");
        party.renew(1, false);
        party.side.setting.now = Some(StoreTime::from_micros(NOW.as_micros() - 5_000_000));
        let reply = party.side.call(Call::inspect(vec![resource()], 0));
        let ScriptReply::Listing { now: theirs, resources, .. } = reply else { panic!("inspect answers {reply:?}") };
        assert_eq!(theirs, now);
        let expiries: BTreeSet<_> = resources[0].listing.holders.iter().map(|holder| holder.expiry).collect();
        assert_eq!(expiries, BTreeSet::from([Some(now + TERMS.ttl)]));
        let next = tokens(party.ask(3, Read, ""))[0];
        assert!(next > now.as_micros(), "{next} is not after {now:?}");
        step(&mut party, 3);
        party.release(2);
        party.release(3);
        party.side.setting.now = Some(now);
    }
    // Not even where nobody is left.
    party.release(1);
    party.side.setting.now = Some(StoreTime::from_micros(NOW.as_micros() - 5_000_000));
    assert!(tokens(party.ask(4, Write, ""))[0] > (NOW + us(2_000_000)).as_micros());
}

fn tokens_rise(kind: Kind) {
    let server = Server::shared(kind);
    let mut side = Side::new(&server, "tokens", Wake::Nobody);
    let mut last = 0;
    // Every other one by the queue.
    side.call(Call::acquire(&request(0, Write, ""), 0, false));
    for number in 1..1_000 {
        side.call(Call::acquire(&request(number, Write, ""), 0, false));
        side.call(Call::release(id(number - 1), vec![resource()]));
        let token = tokens(side.call(Call::renew(id(number), vec![resource()], false)))[0];
        assert!(token > last, "{token} is not above {last}");
        last = token;
        if number % 2 == 0 {
            side.call(Call::release(id(number), vec![resource()]));
            let alone = Call::acquire(&request(number, Write, ""), 0, false);
            last = tokens(side.call(alone))[0];
            assert!(last > token, "{last} is not above {token}");
        }
    }
}

fn tokens_rise_after_all_is_lost(kind: Kind) {
    let server = Server::start(kind);
    let mut side = Side::new(&server, "lost", Wake::Nobody);
    let before = tokens(side.call(Call::acquire(&request(1, Write, ""), 0, false)))[0];
    server.ask::<()>(&["FLUSHALL"]);
    let after = tokens(side.call(Call::acquire(&request(2, Write, ""), 0, false)))[0];
    assert!(after > before, "{after} is not above {before}");
    assert_eq!(side.call(Call::release(id(1), vec![resource()])), ScriptReply::Unknown);
}

fn a_lease_that_ended_is_not_renewed_alone(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "alone", Wake::Nobody);
    let alone = |party: &mut Party| party.side.call(Call::renew_alone(id(1), resource(), TERMS.ttl));
    assert_eq!(alone(&mut party), ScriptReply::Unknown);
    party.ask(1, Write, "");
    party.later(TERMS.ttl - us(1));
    assert_eq!(alone(&mut party), ScriptReply::Renewed(TERMS.ttl));
    party.later(TERMS.ttl - us(1));
    assert!(is_granted(&party.renew(1, false)));
    party.later(TERMS.ttl);
    assert_eq!(alone(&mut party), ScriptReply::Unknown);
}
