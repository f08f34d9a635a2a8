//! Rails that seem to have failed: whose they are, and who is told how.

use link::{Notice, NoticeCause};

use super::*;

/// Within which a question that is asked has had no answer, and between which others are asked.
const SOON: Duration = Duration::from_millis(4);

/// Two lenders and who borrows from both, over two rails.
struct Star<'m> {
    /// The borrower is the last.
    ends: [End<'m>; 3],
    /// What a card has that was given to the end before.
    kept: [(RawMemory<'m>, CardConfig); 3],
    now: Instant,
}

impl<'m> Star<'m> {
    fn new(arena: &'m Arena) -> Self {
        let with_rails = |config: CardConfig| CardConfig { rails: RailConfig::first(2, 9000), ..config };
        let second = Route { rail: RailId::ALL[1], ..ROUTE };
        let borrow = |node: u64| {
            let lender = NodeKey::numbered(node).lends_in(DomainId(node as u32));
            let (io_timeout, edge) = (Duration::from_secs(60), BorrowEdge::Drive);
            config(2, LoanRole::Borrow { lender, routes: vec![ROUTE, second], io_timeout, edge })
        };
        let mut borrows = borrow(1);
        borrows.loans.extend(borrow(3).loans);
        let lends = |node| config(node, LoanRole::Lend(LendConfig::of(0)));
        let kept = [lends(1), lends(3), borrows].map(|config| {
            let config = with_rails(config);
            (config.new_memory(arena), config)
        });
        let ends = kept.each_ref().map(|(memory, config)| End::on(*memory, config.clone(), Instant::ZERO));
        let mut star = Self { ends, kept, now: Instant::ZERO };
        star.run(Duration::from_secs(1), |_, _| false);
        for loan in 0..2 {
            let up = |rail: usize| {
                let channel = star.ends[2].card.channel_of(loan).unwrap();
                channel.rail_status(RailId::ALL[rail], star.now).is_some_and(|(_, status)| status.is_up)
            };
            assert!(up(0) && up(1), "loan {loan}");
        }
        star
    }

    /// Frames of a lender on a rail of which `is_lost` says so arrive nowhere, nor do those for it.
    fn run(&mut self, time: Duration, is_lost: impl Fn(usize, RailId) -> bool) {
        let until = self.now + time;
        while self.now < until {
            self.now += TICK;
            for from in 0..3 {
                for (egress, frame) in self.ends[from].turn(self.now) {
                    let header = Header::parse(&frame).unwrap();
                    let is_to = |to: &usize| match header.destination.domain {
                        DomainId(0) => true,
                        domain => self.ends[*to].card.config.domain == domain,
                    };
                    let to: Vec<usize> = if from == 2 { (0..2).filter(is_to).collect() } else { vec![2] };
                    for to in to {
                        if !is_lost(from.min(to), header.source.rail) {
                            self.ends[to].incoming.push_back((egress, frame.clone()));
                        }
                    }
                }
            }
        }
    }

    /// The card of a lender has been dead for so long, whatever was sent meanwhile, and its successor begins.
    fn replace(&mut self, lender: usize, absence: Duration) {
        self.run(absence, |silent, _| silent == lender);
        let (memory, config) = &mut self.kept[lender];
        config.generation.0 += 1;
        config.seed = Secret([config.generation.0 as u8 + 100; 32]);
        self.ends[lender] = End::on(*memory, config.clone(), self.now);
    }

    /// What the borrower has to tell the members of its group.
    fn notices(&self) -> Vec<Notice> {
        let of = |event: &CardEvent| if let CardEvent::Notice(notice) = event { Some(*notice) } else { None };
        self.ends[2].events.iter().filter_map(of).collect()
    }
}

/// One lender is silent on a rail: it is that one's. Both are: it is the borrower's own, and that is said once.
#[test]
fn a_rail_on_which_several_are_silent_is_ones_own() {
    let member = NodeKey::numbered(9).id();
    let notice = |node, cause| Notice { node: NodeKey::numbered(node).id(), rail: RailId::ALL[1], cause };
    let (one, own) = (notice(3, NoticeCause::Silence), notice(2, NoticeCause::Silence));
    let arena = Arena::default();
    let mut star = Star::new(&arena);
    star.ends[2].card.set_member(member, 0b01);
    star.run(Duration::from_secs(1), |lender, rail| lender == 1 && rail == RailId::ALL[1]);
    assert_eq!(star.notices(), [one]);
    let mut star = Star::new(&arena);
    star.ends[2].card.set_member(member, 0b01);
    star.run(Duration::from_secs(1), |_, rail| rail == RailId::ALL[1]);
    let said = star.notices();
    assert!(said.len() <= 2 && said.iter().filter(|notice| **notice == own).count() == 1, "{said:?}");
}

/// Whenever it dies, and however soon its successor begins: it answers nowhere.
#[test]
fn a_dead_or_recovering_card_is_no_dead_rail() {
    let arena = Arena::default();
    let mut star = Star::new(&arena);
    star.ends[2].card.set_member(NodeKey::numbered(9).id(), 0b11);
    for (round, absence) in
        [3, 8, 20, 300].map(Duration::from_millis).into_iter().cycle().take(48).enumerate()
    {
        star.run(Duration::from_millis(60 + 7 * round as u64 % 100), |_, _| false);
        assert_eq!(star.notices(), [], "{round}, before it dies");
        star.replace(1, absence);
        assert_eq!(star.notices(), [], "{round}, dead for {absence:?}");
    }
}

/// Of a node's own rail it says nothing that one answers nowhere, but what it says of the rail of another one holds.
#[test]
fn a_dead_card_does_not_make_the_rail_of_another_ones_own() {
    let arena = Arena::default();
    let mut star = Star::new(&arena);
    star.ends[2].card.set_member(NodeKey::numbered(9).id(), 0b11);
    star.run(Duration::from_millis(300), |lender, _| lender == 0);
    star.run(Duration::from_millis(300), |lender, rail| lender == 0 || rail == RailId::ALL[1]);
    let (node, cause) = (NodeKey::numbered(3).id(), NoticeCause::Silence);
    assert_eq!(star.notices(), [Notice { node, rail: RailId::ALL[1], cause }]);
}

/// A peer that answers on a rail and does not, in turns, has everybody told of it once a second.
#[test]
fn a_rail_that_comes_and_goes_is_not_told_all_the_time() {
    let arena = Arena::default();
    let mut star = Star::new(&arena);
    star.ends[2].card.set_member(NodeKey::numbered(9).id(), 0b01);
    let begins = star.now;
    for _ in 0..10 {
        star.run(Duration::from_millis(120), |lender, rail| lender == 1 && rail == RailId::ALL[1]);
        star.run(Duration::from_millis(80), |_, _| false);
    }
    let (said, seconds) = (star.notices().len(), star.now.since(begins).as_secs() as usize);
    assert!((1..=seconds + 1).contains(&said), "{said} times in {seconds} s");
}

/// Members hear of a rail by one frame to all of them: each uses another one until it has answered.
#[test]
fn members_are_told_by_one_frame_and_others_one_by_one() {
    let arena = Arena::default();
    let mut star = Star::new(&arena);
    // Nobody asks anything of its own accord now.
    star.run(Duration::from_millis(50), |_, _| false);
    let own = NodeKey::numbered(2).id();
    let is_up = |star: &Star<'_>, lender: usize| {
        let channel = star.ends[lender].card.channel_of(0).unwrap();
        channel.rail_status(RailId::ALL[0], star.now).is_some_and(|(_, status)| status.is_up)
    };
    star.ends[2].card.set_member(NodeKey::numbered(1).id(), 0b11);
    star.ends[2].card.set_lost_carriers(star.now, 0b01);
    let notice = Notice { node: own, rail: RailId::ALL[0], cause: NoticeCause::Carrier };
    star.run(TICK, |_, _| false);
    assert_eq!(star.notices(), [], "members were told by the agent");
    // The answers to what they ask are lost.
    let is_lost = |_, rail| rail == RailId::ALL[0];
    star.run(SOON, is_lost);
    assert!(is_up(&star, 0) && !is_up(&star, 1), "the member is told by nobody else");
    let now = star.now;
    // Of nobody that it knows.
    star.ends[0].card.heed_member(now, Notice { node: NodeKey::numbered(8).id(), ..notice });
    star.run(SOON, is_lost);
    assert!(is_up(&star, 0));
    let now = star.now;
    star.ends[0].card.heed_member(now, notice);
    star.run(SOON, is_lost);
    assert!(!is_up(&star, 0));
    star.ends[2].card.set_lost_carriers(now, 0);
    star.run(Duration::from_secs(1), |_, _| false);
    assert!(is_up(&star, 0) && is_up(&star, 1));
}

/// What is said to all over the rail that has failed arrives nowhere.
#[test]
fn members_that_are_heard_over_the_rail_that_fails_alone_are_told_like_others() {
    let arena = Arena::default();
    let mut star = Star::new(&arena);
    let members = [(1, 0b01), (3, 0b10)].map(|(node, rails)| (NodeKey::numbered(node).id(), rails));
    let tell = |star: &mut Star<'_>, lost: u8| {
        star.ends[2].card.set_lost_carriers(star.now, lost);
        star.run(TICK * 4, |_, _| false);
        let mut doubts = |lender: usize| {
            let events = core::mem::take(&mut star.ends[lender].events);
            events.iter().filter(|event| matches!(event, CardEvent::Doubted(_))).count()
        };
        [doubts(0), doubts(1)]
    };
    members.into_iter().for_each(|(node, rails)| star.ends[2].card.set_member(node, rails));
    assert_eq!(tell(&mut star, 0b01), [1, 0]);
    assert_eq!(tell(&mut star, 0b10), [0, 1]);
    // Nobody hears anything said to all on a rail that is gone already.
    assert_eq!(tell(&mut star, 0b11), [1, 1]);
    members.into_iter().for_each(|(node, _)| star.ends[2].card.set_member(node, 0));
    tell(&mut star, 0);
    assert_eq!(tell(&mut star, 0b01), [1, 1], "they are none any more");
}
