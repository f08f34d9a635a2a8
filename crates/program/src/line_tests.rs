use proptest::prelude::*;

use ::io::rail::ethernet::Mac;

use super::*;

/// A line whose key is no secret.
pub(crate) fn example() -> Line {
    let secret = Key::new(std::array::from_fn(|at| at as u8));
    let addresses = "192.0.2.1:7411".parse().unwrap();
    Line::new(lender(), secret, addresses, "nvme0".parse().unwrap()).unwrap()
}

fn lender() -> Lender {
    Lender { key: PublicKey(std::array::from_fn(|at| 0xff - at as u8)), domain: DomainId(0x2abcd) }
}

fn parse(text: &str) -> Result<Line, LineError> {
    text.parse()
}

/// The text the example line begins with up to and without `@`, and the rest.
fn example_parts() -> (String, String) {
    let text = example().reveal();
    let (key, rest) = text.split_once('@').unwrap();
    (key.to_owned(), rest.to_owned())
}

#[test]
fn a_line_names_a_key_that_a_node_can_have() {
    let Line { secret, addresses, function, .. } = example();
    let line = Line::new(Lender::default(), secret, addresses, function).unwrap();
    assert_eq!(parse(&line.reveal()), Err(LineError::Lender));
}

#[test]
fn the_text_of_a_line_never_changes_between_releases() {
    let expected = "causeway://0tnwvzzyzqyfqyqsz3vzdxfmyfsf3w7fxvpystzax7mefsq5wkhy5rf0000g\
                    40r40m30e209185gr38e1w8124gk2gahc5rr34d1p70x3rfy6mqyzgtnhpz2@192.0.2.1:7411/nvme0";
    assert_eq!(example().reveal(), expected);
    assert_eq!(parse(expected), Ok(example()));
}

#[test]
fn crc_24_matches_one_computed_by_long_division() {
    // x^24 + x^7 + x^2 + x + 1, begun with ones, over one zero byte: eight steps of the register by hand.
    let mut register = 0xff_ffff_u32;
    for _ in 0..8 {
        register = if register >> 23 == 1 { (register << 1 ^ 0x87) & 0xff_ffff } else { register << 1 };
    }
    assert_eq!(CRC_24.checksum(&[0]), register);
}

#[test]
fn errors_name_the_part() {
    let (key, rest) = example_parts();
    let at_key = |from: &str, to: &str| parse(&format!("{}@{rest}", key.replacen(from, to, 1)));
    let at_rest = |from: &str, to: &str| parse(&format!("{key}@{}", rest.replacen(from, to, 1)));

    assert_eq!(at_key("causeway:", "causewy:"), Err(LineError::Scheme));
    assert_eq!(at_key("//0tnw", "//0tnx"), Err(LineError::KeyCheck));
    assert_eq!(at_key("//0tnw", "//0tnW"), Err(LineError::KeyCharacter { position: 4 }));
    assert_eq!(at_key("//0tnw", "//0tw"), Err(LineError::KeyLength { found: 119 }));
    assert_eq!(parse(&key), Err(LineError::NoKey));
    assert!(matches!(at_rest("192.0.2.1", "192.0.2.7"), Err(LineError::AddressesCheck { .. })));
    assert!(matches!(at_rest("192.0.2.1", "192.0.2.256"), Err(LineError::Address { .. })));
    assert!(matches!(at_rest("7411", "7412"), Err(LineError::AddressesCheck { .. })));
    assert!(matches!(at_rest("nvme0", "nvme1"), Err(LineError::FunctionCheck { .. })));
    assert!(matches!(at_rest("nvme0", "NVME0"), Err(LineError::FunctionName { .. })));
    assert_eq!(at_rest("/nvme0", "/"), Err(LineError::NoFunction));
    assert_eq!(at_rest("/nvme0", ""), Err(LineError::NoFunction));
    assert_eq!(parse(&"x".repeat(LINE_BYTES_MAX + 1)), Err(LineError::TooLong { bytes: 513 }));
}

#[test]
fn lines_of_other_versions_are_told_from_slips() {
    let (_, rest) = example_parts();
    assert_eq!(parse(&format!("{SCHEME}{}@{rest}", "0".repeat(64))), Err(LineError::OldForm));
    let mut coded = decode_key(example_parts().0.strip_prefix(SCHEME).unwrap()).unwrap();
    coded[0] ^= 0x80;
    let check = key_check(&coded[..KEY_CHECK.start]);
    coded[KEY_CHECK].copy_from_slice(&check);
    assert_eq!(
        parse(&format!("{SCHEME}{}@{rest}", BASE32.encode(&coded))),
        Err(LineError::LaterForm { form: 33 })
    );
}

#[test]
fn addresses_nobody_answers_at_are_refused() {
    let with = |addresses: &[&str]| {
        let addresses = addresses.join(",").parse().unwrap();
        Line::new(lender(), Key::new([7; 32]), addresses, "nvme0".parse().unwrap())
    };
    assert!(with(&["[2001:db8::1]:7411", "192.0.2.1:7411"]).is_ok());
    assert!(with(&["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"]).is_ok());
    for bad in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "255.255.255.255:1", "127.0.0.1:0", "[fe80::1%2]:1"] {
        assert!(matches!(with(&[bad]), Err(LineError::Address { .. })), "{bad}");
    }
    assert_eq!(with(&[]), Err(LineError::NoAddress));
    assert!(matches!(with(&["127.0.0.1:1", "127.0.0.1:1"]), Err(LineError::AddressTwice { .. })));
}

/// The text of a line whose addresses are these, as somebody else could have written it.
fn with_addresses(addresses: &str) -> String {
    let (key, _) = example_parts();
    let mut coded = decode_key(key.strip_prefix(SCHEME).unwrap()).unwrap();
    coded[ADDRESSES_CHECK].copy_from_slice(&addresses_check(addresses));
    let check = key_check(&coded[..KEY_CHECK.start]);
    coded[KEY_CHECK].copy_from_slice(&check);
    format!("{SCHEME}{}@{addresses}/nvme0", BASE32.encode(&coded))
}

#[test]
fn a_line_says_which_rails_its_addresses_are_on() {
    let text = with_addresses("192.0.2.1:7411,2=192.0.2.2:7411");
    let line = parse(&text).unwrap();
    assert_eq!(line.reveal(), text);
    assert_eq!(line.addresses().iter().map(|(rail, _)| rail.get()).collect::<Vec<_>>(), [0, 2]);
    assert!(line.to_string().ends_with("***@192.0.2.1:7411,2=192.0.2.2:7411/nvme0"), "{line}");
    // One line has one text.
    for other in ["0=192.0.2.1:7411", "1=192.0.2.1:7411,192.0.2.2:7411", "4=192.0.2.1:7411"] {
        assert!(matches!(parse(&with_addresses(other)), Err(LineError::Rail { .. })), "{other}");
    }
    let five = ["192.0.2.1:7411"; 5].join(",");
    assert_eq!(parse(&with_addresses(&five)), Err(LineError::TooManyAddresses { found: 5 }));
    assert_eq!(parse(&with_addresses("")), Err(LineError::NoAddress));
}

#[test]
fn a_kind_of_address_that_is_not_known_is_no_typing_error() {
    let why = |addresses: &str| parse(&with_addresses(addresses)).unwrap_err().to_string();
    let ethernet = "192.0.2.1:7411,eth:02:00:00:00:00:01";
    assert_eq!(parse(&with_addresses(ethernet)).unwrap().addresses().to_string(), ethernet);
    let group = why("192.0.2.1:7411,eth:03:00:00:00:00:01");
    assert!(group.contains("the address of a group"), "{group}");
    let later = why("rdma:192.0.2.1");
    assert!(later.contains("kind rdma, which this version of causeway does not know"), "{later}");
    // Where the checksum does not match, somebody has mistyped it.
    let slip = example().reveal().replace("192.0.2.1:7411", "eth:2:0:0:0:0:1");
    assert!(parse(&slip).unwrap_err().to_string().starts_with("typing error in address `eth:2:0:0:0:0:1`"));
}

#[test]
fn nothing_prints_a_key_unasked() {
    let line = example();
    let argument: LineArgument = line.reveal().parse().unwrap();
    let printed = format!("{line} {line:?} {:?} {argument:?}", line.secret());
    assert!(!printed.contains(&line.secret().reveal_text()), "{printed}");
    assert!(!printed.contains(" 31,"), "the bytes of the key are printed as numbers: {printed}");
    assert!(printed.starts_with("causeway://***@192.0.2.1:7411/nvme0 "), "{printed}");
}

#[test]
fn redaction_finds_whole_and_mangled_lines() {
    let (key, rest) = example_parts();
    let secret = key.strip_prefix(SCHEME).unwrap();
    assert_eq!(redact(&format!("bad '{key}@{rest}'!")), format!("bad 'causeway://***@{rest}'!"));
    assert_eq!(redact(&format!("bad '{key}#{rest}' more")), "bad 'causeway://***' more");
    assert_eq!(redact(&format!("causewy://{secret}@{rest}")), format!("causewy://***@{rest}"));
    assert_eq!(redact(&format!("{key}@a and {key}@b")), "causeway://***@a and causeway://***@b");
    assert_eq!(
        redact("a line begins with `causeway://`, ünïcode"),
        "a line begins with `causeway://`, ünïcode"
    );
}

#[test]
fn reading_takes_the_first_line_and_no_more_than_it_needs() {
    let text = example().reveal();
    let first = |bytes: &[u8]| read_first_line(bytes);
    assert_eq!(first(format!("\n  {text} \r\nmore\n").as_bytes()).unwrap(), Some(text));
    assert_eq!(first(b" \n").unwrap(), None, "it is empty");
    assert_eq!(first(b"\xff\xfe").unwrap_err().to_string(), "it is not text");
    let endless = read_first_line(io::repeat(b'x')).unwrap().unwrap();
    assert_eq!(endless.len(), 4 * LINE_BYTES_MAX);
}

#[test]
fn arguments_choose_where_the_line_comes_from() {
    let parse = |text: &str| text.parse::<LineArgument>().unwrap();
    assert_eq!(parse("-"), LineArgument::Stdin);
    assert_eq!(parse("@/tmp/line"), LineArgument::File("/tmp/line".into()));
    assert_eq!(parse("causeway://x"), LineArgument::Text("causeway://x".to_owned()));
    let missing = parse("@/nonexistent/line").read().unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/line"), "{missing}");
}

/// Every line that differs in one place: a character changed, removed, put in, or exchanged with its neighbour.
fn edits(text: &str) -> Vec<String> {
    let others: Vec<char> = (' '..='~').chain(['\n', '\0', 'ä', '０']).collect();
    let characters: Vec<char> = text.chars().collect();
    let mut edits = Vec::new();
    for at in 0..=characters.len() {
        let (before, after) = characters.split_at(at);
        let joined = |middle: &[char], after: &[char]| -> String {
            before.iter().chain(middle).chain(after).collect()
        };
        edits.extend(others.iter().map(|&other| joined(&[other], after)));
        let Some((&here, after)) = after.split_first() else { continue };
        edits.push(joined(&[], after));
        edits.extend(others.iter().filter(|&&other| other != here).map(|&other| joined(&[other], after)));
        if let Some((&next, after)) = after.split_first().filter(|(next, _)| **next != here) {
            edits.push(joined(&[next, here], after));
        }
    }
    edits
}

#[test]
fn every_edit_of_the_example_is_an_error() {
    for text in edits(&example().reveal()) {
        assert!(parse(&text).is_err(), "taken for a line: {text}");
    }
}

fn any_address() -> impl Strategy<Value = RailAddress> {
    let port = 1..=u16::MAX;
    prop_oneof![
        (any::<[u8; 4]>(), port.clone()).prop_map(|at| SocketAddr::from(at).into()),
        (any::<[u16; 8]>(), port).prop_map(|at| SocketAddr::from(at).into()),
        any::<[u8; 6]>().prop_map(|mac| RailAddress::Ethernet(Mac(mac))),
    ]
    .prop_filter("one that can be reached", |address| check_address(address).is_ok())
}

/// On any of the rails.
fn any_addresses() -> impl Strategy<Value = Addresses> {
    let places = prop::array::uniform4(prop::option::of(any_address()));
    let list = places.prop_map(|places| {
        let mut list = Addresses::NONE;
        let there = base::ids::RailId::ALL.into_iter().zip(places).filter_map(|(rail, it)| Some((rail, it?)));
        there.for_each(|(rail, address)| list.set(rail, address));
        list
    });
    let is_one_twice = |list: &Addresses| {
        list.iter().any(|(rail, it)| list.iter().any(|(other, its)| other < rail && its == it))
    };
    list.prop_filter("each once", move |list| !list.is_empty() && !is_one_twice(list))
}

prop_compose! {
    fn any_line()(
        secret in any::<[u8; 32]>(),
        key in any::<[u8; 32]>().prop_map(PublicKey).prop_filter("some node's", PublicKey::is_usable),
        domain in (0_u32..1 << DomainId::BITS).prop_map(DomainId),
        addresses in any_addresses(),
        function in "[a-z0-9][a-z0-9-]{0,31}",
    ) -> Line {
        let lender = Lender { key, domain };
        Line::new(lender, Key::new(secret), addresses, function.parse().unwrap()).unwrap()
    }
}

proptest! {
    #[test]
    fn every_line_comes_back(line in any_line()) {
        let text = line.reveal();
        prop_assert!(text.len() <= LINE_BYTES_MAX);
        prop_assert_eq!(parse(&text), Ok(line));
    }

    #[test]
    fn any_text_parses_or_fails_but_never_panics(
        text in ".{0,200}",
        tail in "(causeway://)?[0-9a-z@/:,.\\[\\]]{0,120}",
    ) {
        let _ = parse(&text);
        let _ = parse(&tail);
        let _ = redact(&text);
        let _ = redact(&tail);
        let _ = parse(&format!("{}@{tail}", example_parts().0));
    }
}

proptest! {
    // One case tries every edit of a line, some 30,000 of them.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_edit_of_any_line_is_an_error(line in any_line()) {
        for text in edits(&line.reveal()) {
            prop_assert!(parse(&text).is_err(), "taken for a line: {}", text);
        }
    }
}

#[test]
fn a_line_names_its_group_and_each_mistake_there() {
    let line = example().in_group(base::ids::Group(4094));
    let text = line.reveal();
    assert!(text.ends_with("/nvme0?group=4094") && !example().reveal().contains("group"));
    assert_eq!(text.parse(), Ok(line.clone()));
    assert_ne!(text.parse(), Ok(example()));
    assert!(line.to_string().ends_with("/nvme0?group=4094"));
    for wrong in ["", "0", "1", "4095", "07", "+7", "65537", "-1", "x"] {
        let changed = text.replace("=4094", &format!("={wrong}"));
        assert_eq!(changed.parse::<Line>(), Err(LineError::Group { text: wrong.to_owned() }), "{wrong}");
    }
    for other in
        [text.replace("4094", "4093"), text.replace("?group=4094", ""), example().reveal() + "?group=2"]
    {
        assert!(matches!(other.parse::<Line>(), Err(LineError::FunctionCheck { .. })), "{other}");
    }
    assert!(matches!(text.replace("?group", "?vlan").parse::<Line>(), Err(LineError::FunctionName { .. })));
}
