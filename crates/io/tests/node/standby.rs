//! Cards that stand by.

use crate::cases::pattern;
use crate::client::Client;
use crate::disk::Scratch;
use crate::pair::{Node, Pair};

const MIB: u64 = 1 << 20;

/// Kills the card of a node, with a write under way. The process that has followed.
fn kill(node: &Node, client: &mut Client, round: u64) -> i32 {
    let before = node.record();
    client.begin_write(0, &pattern(round, 65536));
    node.kill_card();
    assert_eq!(client.reply(), 0, "the write goes on");
    let after = node.wait_until("the card was replaced", |record| {
        record.running && record.restarts == before.restarts + 1
    });
    assert!(client.read(0, 65536) == pattern(round, 65536));
    after.pid.unwrap()
}

/// Kills cards until whoever stood by has followed. What the next one has to know may just have changed, and then
/// another one follows: who is connected is none of that.
fn is_followed(node: &Node, client: &mut Client) {
    let follows = |round| {
        let next = node.wait_standby();
        kill(node, client, round) == next
    };
    assert!((0..10).any(follows), "nobody who stood by has ever taken over");
}

pub(crate) fn takes_over() {
    let place = Scratch::new("standby");
    let pair = Pair::start(&place.image(MIB), &place.path(""));
    let mut client = Client::connect(&pair.socket);
    for _ in 0..2 {
        is_followed(&pair.lender, &mut client);
        is_followed(&pair.borrower, &mut client);
    }
}

pub(crate) fn that_dies_costs_nothing() {
    let place = Scratch::new("standby-dies");
    let pair = Pair::start(&place.image(MIB), &place.path(""));
    let mut client = Client::connect(&pair.socket);
    for node in [&pair.lender, &pair.borrower] {
        node.wait_standby();
        node.kill_standby();
        kill(node, &mut client, 1);
        // There is one again behind a card that serves.
        is_followed(node, &mut client);
    }
}
