//! Slots that become others.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

/// What is attached to a slot and usable, if anything is.
fn attached(node: &Node<'_>, slot: &str) -> Option<String> {
    let status = node.status();
    let loans = status["loans"].as_array().unwrap();
    let loan = loans.iter().find(|loan| loan["slot"] == slot && loan["state"] == "up")?;
    Some(loan["function"].as_str().unwrap().to_owned())
}

fn wait_attached(node: &Node<'_>, slot: &str, function: &str) {
    let is_there = || Ok((attached(node, slot).as_deref() == Some(function)).then_some(()));
    poll_until(&format!("{function} in {slot}"), SOON, is_there)
        .unwrap_or_else(|error| panic!("{error}: {}", node.status()["loans"]));
}

fn mode(path: &std::path::Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn w3_slots_get_another_preset_and_another_socket_on_one_card() {
    let world = world();
    let (left, right) = (world.left(), world.right());
    let lender = Lender::start(right, &["ram:16M", "ram:16M", "ram:16M"], &[]).unwrap();
    let [a, b, c] = [0, 1, 2].map(|index| lender.lines[index].clone());
    let stays = loan(left, "a", &a);
    let path = |name: &str| left.dir().join(format!("{name}.vm"));
    let slot = |socket: &str, more: &str| {
        let slot = format!("[[domains.slots]]\nname = 'x'\nsocket = {:?}\n{more}", path(socket));
        format!("[[domains]]\nname = 'vm'\nkind = 'vm'\n{slot}")
    };
    let [with_b, with_c] = [&b, &c].map(|line| format!("line = '{line}'\n"));
    let mut borrower = Node::start(left, "borrower", &[stays.clone(), slot("old", &with_b)]);
    borrower.edge();
    let load = Load::start(&socket(left, "a"), Model::new(0, MIB, 1), 4).unwrap();
    wait_attached(&borrower, "vm/x", "nvme1");

    // Another function: the one that is there is given back, and the other one is attached then.
    let report = borrower.reload(&[stays.clone(), slot("old", &with_c)]);
    assert_eq!(states(&report), ["vm changed pending"]);
    wait_attached(&borrower, "vm/x", "nvme2");
    // Another socket, and other rights of it: nobody is connected.
    let report = borrower.reload(&[stays.clone(), slot("new", &with_c)]);
    assert_eq!(states(&report), ["vm changed done"]);
    assert!(path("new").exists() && !path("old").exists());
    let private = format!("mode = '0600'\n{with_c}");
    let report = borrower.reload(&[stays.clone(), slot("new", &private)]);
    assert_eq!((states(&report), mode(&path("new"))), (vec!["vm changed done".to_owned()], 0o600));
    assert_eq!(attached(&borrower, "vm/x").as_deref(), Some("nvme2"), "it stays attached");

    // A machine that is connected keeps its socket until it goes.
    let machine = UnixStream::connect(path("new")).unwrap();
    poll_until("the machine to be taken", SOON, || {
        let next = [stays.clone(), slot("newer", &private)];
        write(left, "borrower", &next);
        let report: Value = serde_json::from_str(&borrower.ask(&["--dry-run", "-o", "json"]).stdout).unwrap();
        Ok(report["changes"][0]["waits_for"].is_string().then_some(()))
    })
    .unwrap();
    assert!(!path("newer").exists(), "nothing is left of a dry run");
    let report = borrower.reload(&[stays.clone(), slot("newer", &private)]);
    assert_eq!(states(&report), ["vm changed pending"]);
    let waits_for = report["changes"][0]["waits_for"].as_str().unwrap();
    assert!(waits_for.contains("its virtual machine"), "{report}");
    assert!(path("new").exists());
    borrower.wait_event("slot-changing");
    let report = borrower.reload(&[stays.clone(), slot("newer", &private)]);
    assert_eq!(states(&report), ["vm changed pending"], "said again by whoever asks again");
    drop(machine);
    poll_until("the socket to move", SOON, || Ok((!path("new").exists()).then_some(()))).unwrap();
    assert_eq!(mode(&path("newer")), 0o600);

    // What somebody has decided gives way to a file that is changed, and nothing may be there as well.
    let detach = |node: &Node<'_>| {
        let mut command = left.command(binary().unwrap());
        command.args(["detach", "vm/x", "--name", "borrower"]);
        assert_eq!(
            run_to_end(command, &left.dir().join("logs"), "detach", START_TIMEOUT).unwrap().code,
            Some(0)
        );
        poll_until("nothing in the slot", SOON, || Ok(attached(node, "vm/x").is_none().then_some(())))
            .unwrap();
    };
    detach(&borrower);
    let report = borrower.reload(&[stays.clone(), slot("newer", &with_b)]);
    assert_eq!(states(&report), ["vm changed done"]);
    wait_attached(&borrower, "vm/x", "nvme1");
    borrower.reload(&[stays.clone(), slot("newer", "")]);
    poll_until("the socket to go", SOON, || Ok((!path("newer").exists()).then_some(()))).unwrap();
    let report = borrower.reload(&[stays.clone(), slot("newer", &with_b)]);
    assert_eq!(report["card_replaced"], false);
    wait_attached(&borrower, "vm/x", "nvme1");
    let card = card(&borrower.status()).unwrap();
    assert_eq!((card.generation, card.restarts), (1, 0), "no other card");
    let report = load.stop().unwrap();
    assert_eq!((report.failed, report.lost), (0, None));
    // The next start finds what the file says.
    borrower.end();
    let mut borrower = Node::start(left, "borrower", &[stays, slot("newer", &with_c)]);
    borrower.edge();
    wait_attached(&borrower, "vm/x", "nvme2");
    borrower.end();
    drop(lender);
}
