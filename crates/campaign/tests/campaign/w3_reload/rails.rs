//! Rails that come and go.

use std::net::Ipv4Addr;

use super::*;

fn named(machine: &Machine, name: &str, rail: usize) -> String {
    format!("[[rails]]\nname = '{name}'\nlisten = '{}'\n", machine.addresses()[rail])
}

/// The rails of a node: name, state, and the address where each leads.
fn rails(node: &Node<'_>) -> Vec<(String, String, String)> {
    let status = node.status();
    let rails = status["rails"].as_array().unwrap().iter();
    let text = |rail: &Value, key: &str| rail[key].as_str().unwrap().to_owned();
    let address = |rail: &Value| text(rail, "peer").rsplit_once(':').map_or("", |(host, _)| host).to_owned();
    rails.map(|rail| (text(rail, "name"), text(rail, "state"), address(rail))).collect()
}

/// Waits until the node has these rails, all of them up, that lead to these addresses.
fn wait_rails(node: &Node<'_>, wanted: &[(&str, Ipv4Addr)]) {
    let up = |(name, to): &(&str, Ipv4Addr)| (name.to_string(), "up".to_owned(), to.to_string());
    let wanted: Vec<_> = wanted.iter().map(up).collect();
    poll_until("the rails to be as they should", SOON, || Ok((rails(node) == wanted).then_some(())))
        .unwrap_or_else(|error| panic!("{error}: {:?}, not {wanted:?}", rails(node)));
}

#[test]
fn w3_a_rail_comes_and_another_one_goes_while_fio_verifies() {
    let world = World::new(&WorldConfig { rails: 2, ..WorldConfig::default() }).unwrap();
    let (left, right) = (world.left(), world.right());
    let [first, second] = [named(right, "first", 0), named(right, "second", 1)];
    let (a, b) = (device("a", "ram:256M"), device("b", "ram:16M"));
    let mut lender = Node::start(right, "lender", &[first.clone(), second.clone(), a.clone(), b.clone()]);
    let line = lender.line();
    lender.line();

    // Nobody is there yet, and the second rail goes: the line that the borrower has names it all the same.
    let report = lender.reload(&[first.clone(), a.clone(), b.clone()]);
    assert_eq!(states(&report), ["second removed done"]);
    assert_eq!((&report["changes"][0]["thing"], &report["card_replaced"]), (&"rail".into(), &false.into()));
    let shorter = report["lines"][0].as_str().unwrap().to_owned();
    assert_eq!(lender.line(), shorter);
    lender.line();
    let addresses = |line: &str| line.split_once('@').unwrap().1.split(',').count();
    assert_eq!((addresses(&line), addresses(&shorter)), (2, 1));
    let loan_a = loan(left, "a", &line);
    let mut borrower = Node::start(left, "borrower", std::slice::from_ref(&loan_a));
    borrower.edge();
    let job = FioJob {
        uri: &uri(left, "a"),
        pattern: "randrw",
        block_size: "4k",
        depth: 8,
        offset: 0,
        size: 192 * MIB,
        seed: 1,
    };
    let mut fio = job.start(left, "fio").unwrap();
    let load = Load::start(&socket(left, "a"), Model::new(192 * MIB, MIB, 1), 4).unwrap();
    load.wait_done(100, SOON).unwrap();
    // Each rail leads to some rail of the lender: to the one with its id where there is one.
    let [one, two] = [right.addresses()[0], right.addresses()[1]];
    wait_rails(&borrower, &[("rail0", one), ("rail1", one)]);

    // It comes, and the first one goes when it answers: traffic moves there.
    let report = lender.reload(&[first.clone(), second.clone(), a.clone(), b.clone()]);
    assert_eq!(
        (states(&report), &report["card_replaced"]),
        (vec!["second added done".to_owned()], &false.into())
    );
    assert_eq!(report["lines"][0], line.as_str(), "the lines name it again");
    [lender.line(), lender.line()].iter().for_each(|line| assert_eq!(addresses(line), 2));
    wait_rails(&borrower, &[("rail0", one), ("rail1", two)]);
    let report = lender.reload(&[second.clone(), a.clone(), b.clone()]);
    assert_eq!(states(&report), ["first removed done"]);
    let only = report["lines"][1].as_str().unwrap().to_owned();
    assert!(only.contains(&format!("@1={}:", right.addresses()[1])), "it keeps its id, and the line says so");
    lender.wait_event("rail-removed");
    load.wait_done(100, SOON).unwrap();
    wait_rails(&borrower, &[("rail0", two), ("rail1", two)]);

    // So it is for the cards that follow, and for who comes with the new line.
    kill_card(right, "lender", SOON).unwrap();
    kill_card(left, "borrower", SOON).unwrap();
    load.wait_done(100, SOON).unwrap();
    wait_rails(&borrower, &[("rail0", two), ("rail1", two)]);
    let mut other = Node::start(left, "other", &[loan(left, "b", &only)]);
    other.edge();
    connect(&socket(left, "b")).unwrap().write(0, &[1; 4096]).unwrap();

    // The first one comes back, as the lowest that is free.
    let report = lender.reload(&[first.clone(), second.clone(), a.clone(), b.clone()]);
    assert_eq!(report["lines"][0], line.as_str());
    wait_rails(&borrower, &[("rail0", one), ("rail1", two)]);
    assert!(fio.ended().unwrap().is_none(), "all that was to happen while it verifies");
    fio.wait_success(SOON * 4).unwrap();
    let report = load.stop().unwrap();
    assert_eq!((report.failed, report.failed_flushes, report.lost), (0, 0, None));
    scale::report(&format!("w3: longest gap beside rails that come and go: {:?}", report.longest_gap));
    other.end();
    borrower.end();
    lender.end();
}

#[test]
fn x_a_rail_that_cannot_come_or_go_changes_nothing() {
    let world = World::new(&WorldConfig { rails: 2, ..WorldConfig::default() }).unwrap();
    let right = world.right();
    let [first, second] = [named(right, "first", 0), named(right, "second", 1)];
    let a = device("a", "ram:1M");
    let mut lender = Node::start(right, "lender", &[first.clone(), a.clone()]);
    lender.line();
    let taken = format!("{}:7999", right.addresses()[1]);
    let mut other = Lender::start_as(right, "other", &["ram:1M"], &["--listen", &taken]).unwrap();
    let port = second.replace("name = 'second'", "name = 'second'\nport = 7999");
    lender.refused(&[first.clone(), port.clone(), a.clone()], 3, &[&taken, "in use"]);
    let nowhere = "[[rails]]\nname = 'x'\nlisten = '192.0.2.77'\n".to_owned();
    lender.refused(&[first.clone(), nowhere, a.clone()], 3, &["192.0.2.77", "no address of this machine"]);
    lender.refused(std::slice::from_ref(&a), 3, &["rail first", "let another one come first"]);
    let id = |id: u32| second.replace("name = 'second'", &format!("name = 'second'\nid = {id}"));
    lender.refused(&[first.clone(), id(0), a.clone()], 3, &["second cannot have id 0", "rail first"]);
    lender.refused(&[first.clone(), id(4), a.clone()], 2, &["from 0 to 3"]);
    let renumbered = first.replace("name = 'first'", "name = 'first'\nid = 3");
    lender.refused(&[renumbered, a.clone()], 3, &["rail first", "id is to be 3"]);
    assert_eq!(other.process.terminate(STOP_TIMEOUT).unwrap(), 0);

    // What was refused can come when nothing is in its way, with a number that the file says.
    write(right, "lender", &[first.clone(), id(3), a.clone()]);
    let outcome = lender.ask(&["--dry-run"]);
    assert!(
        outcome.stdout.starts_with("rail second added (") && outcome.stdout.contains("to do"),
        "{outcome:?}"
    );
    signal(lender.process.pid(), Signal::HUP).unwrap();
    lender.wait_event("rail-added");
    let line = lender.line();
    assert!(line.contains(&format!(",3={}:", right.addresses()[1])), "it has the id that the file says");
    lender.end();
}
