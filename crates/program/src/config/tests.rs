use super::*;
use proptest::prelude::*;

const LINE: &str = "causeway://0tnwvzzyzqyfqyqsz3vzdxfmyfsf3w7fxvpystzax7mefsq5wkhy5rf0000g\
                    40r40m30e209185gr38e1w8124gk2gahc5rr34d1p70x3rfy6mqyzgtnhpz2@192.0.2.1:7411/nvme0";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("/etc/causeway/store1.toml")).map_err(|error| error.to_string())
}

/// The one error of a text: `LINE:COLUMN: what`.
fn error(text: &str) -> String {
    let error = parse(text).unwrap_err();
    error.strip_prefix("/etc/causeway/store1.toml:").expect("names the file").to_owned()
}

#[test]
fn a_full_file_is_read() {
    let text = format!(
        "name = 'n'\nstate_dir = 'state'\ninsecure = true\nshm = false\n\
         [[rails]]\nname = 'left'\nlisten = '10.0.0.1'\nport = 9\n\
         [[rails]]\nname = 'right'\nlisten = '[fd00::1]:7411'\n\
         [[devices]]\nfunction = 'nvme0'\nsource = 'disk.img'\nread_only = true\nblock_size = 4096\n\
         [[devices]]\nfunction = 'nvme1'\nsource = 'ram:64k'\n\
         [[loans]]\nline = '{LINE}'\nnbd = 'nbd.sock'\nio_timeout_s = 5\n"
    );
    let config = parse(&text).unwrap();
    assert_eq!(config.name.as_str(), "n");
    assert_eq!(config.state_dir, Some("/etc/causeway/state".into()));
    assert_eq!((config.protection, config.shared_memory), (Protection::Insecure, false));
    assert_eq!(config.rails[0].listen, "10.0.0.1:9".parse().unwrap());
    assert_eq!(config.rails[1].listen, "[fd00::1]:7411".parse().unwrap());
    assert_eq!(config.devices[0].source, Source::Path("/etc/causeway/disk.img".into()));
    assert_eq!(config.devices[0].block_size.bytes(), 4096);
    assert!(config.devices[0].read_only && !config.devices[1].read_only);
    assert_eq!(config.loans[0].line.reveal(), LINE);
    assert_eq!(config.loans[0].edge, LoanEdge::Nbd { path: "/etc/causeway/nbd.sock".into() });
    assert_eq!(config.loans[0].io_timeout, Duration::from_secs(5));
}

#[test]
fn one_cipher_can_be_insisted_on() {
    let node = |keys: &str| format!("{keys}[[devices]]\nfunction = 'a'\nsource = 'x.img'\n");
    let config = parse(&node("cipher = 'aes-256-gcm'\n")).unwrap();
    assert_eq!(config.protection, Protection::Aes256Gcm);
    assert!(error(&node("cipher = 'rot13'\n")).starts_with("1:10: `cipher` can be \"aes-256-gcm\"; "));
    assert!(error(&node("insecure = true\ncipher = 'aes-256-gcm'\n")).contains("remove one"));
}

#[test]
fn a_loan_is_for_programs_or_for_a_virtual_machine() {
    let loan = |keys: &str| format!("[[loans]]\nline = '{LINE}'\n{keys}");
    let config = parse(&loan("vm = 'vm.sock'\nvm_owner = 'qemu'\nvm_mode = '0660'\n")).unwrap();
    let access = SocketAccess { owner: Some("qemu".into()), group: None, mode: Some(0o660) };
    assert_eq!(config.loans[0].edge, LoanEdge::Vm { path: "/etc/causeway/vm.sock".into(), access });
    for (keys, place, word) in [
        ("", "1:", "add `nbd` or `vm`"),
        ("nbd = 'a'\nvm = 'b'\n", "4:", "remove one"),
        ("nbd = 'a'\nvm_group = 'kvm'\n", "4:", "add `vm`"),
        ("vm = 'a'\nvm_mode = 'rw'\n", "4:", "octal"),
        ("vm = ''\n", "3:", "empty"),
    ] {
        let error = error(&loan(keys));
        assert!(error.starts_with(place) && error.contains(word), "{keys}: {error}");
    }
    let twice = format!("{}{}", loan("vm = 'a'\n"), loan("nbd = 'a'\n"));
    assert!(error(&twice).contains("socket `a`"));
}

#[test]
fn what_is_left_out_has_a_default() {
    let config = parse("[[devices]]\nfunction = 'nvme0'\nsource = 'ram:1M'\n").unwrap();
    assert_eq!(config.name.as_str(), "store1");
    assert_eq!((config.state_dir, config.protection, config.rails.len()), (None, Protection::Aegis, 0));
    assert!(config.shared_memory);
    assert_eq!(config.devices[0].block_size, BlockSize::B512);
}

#[test]
fn errors_name_place_fault_and_remedy() {
    let device = "[[devices]]\nfunction = 'nvme0'\nsource = 'ram:1M'\n";
    let cases = [
        (format!("inscure = true\n{device}"), "1:1: unknown key `inscure`; did you mean `insecure`?"),
        (format!("{device}readonly = true\n"), "4:1: unknown key `readonly`; did you mean `read_only`?"),
        (
            format!("{device}colour = 'red'\n"),
            "4:1: unknown key `colour`; possible here: function, source, read_only, block_size, cache, allow, iops, \
             bytes_per_s, functions, namespaces, group",
        ),
        ("[[devices]]\nsource = 'ram:1M'\n".to_owned(), "1:1: the key `function` is missing here"),
        (
            format!("{device}cache = 'some'\n"),
            "4:9: cache \"some\" is not possible; write \"none\" or \"volatile\"",
        ),
        (format!("{device}block_size = 1024\n"), "4:14: block_size 1024 is not possible; write 512 or 4096"),
        (format!("{device}{device}"), "5:12: function `nvme0` stands in line 2 already"),
        (
            "[[devices]]\nfunction = 'nvme0'\nsource = 'ram:1000'\n".to_owned(),
            "3:10: ram:1000 is not a multiple of the block size, 512 bytes",
        ),
        (
            "[[devices]]\nfunction = 'nvme0'\nsource = 'flash:disk.img?colour=3'\n".to_owned(),
            "3:10: `colour` is no option of a flash card; there are scale, channels, read_iops, write_iops, \
             read_mb_s, write_mb_s, read_us and write_us",
        ),
        (
            "[[devices]]\nfunction = 'nvme0'\nsource = 'flash:ram:1000'\n".to_owned(),
            "3:10: flash:ram:1000 is not a multiple of the block size, 512 bytes",
        ),
        (
            format!("{device}[[rails]]\nname = 'a'\nlisten = 'somewhere'\n"),
            "6:10: `somewhere` is no address; write 10.0.0.1, 10.0.0.1:7411, fd00::1 or [fd00::1]:7411 (no host \
             names), or eth:INTERFACE",
        ),
        (
            format!("{device}[[rails]]\nname = 'a'\nlisten = '10.0.0.1'\nport = 70000\n"),
            "7:8: a port is a number from 1 to 65535",
        ),
        (
            format!("{device}[[rails]]\nname = 'a'\nlisten = '10.0.0.1:5'\nport = 5\n"),
            "7:8: the port stands in `listen` already; remove one of them",
        ),
        (
            format!("{device}[[rails]]\nname = 'a'\n"),
            "5:8: a rail needs listen = \"ADDR\" or ethernet = \"INTERFACE\"",
        ),
        (
            format!("{device}[[rails]]\nname = 'a'\nlisten = '10.0.0.1'\nethernet = 'eth1'\n"),
            "7:12: a rail has listen or ethernet, not both",
        ),
        (
            format!("{device}[[rails]]\nname = 'a'\nlisten = 'eth:eth1'\n"),
            "6:10: an interface stands behind ethernet: ethernet = \"eth1\"",
        ),
        (
            format!("{device}[[rails]]\nname = 'a'\nethernet = 'eth1'\nport = 5\n"),
            "7:8: a rail over Ethernet has no port",
        ),
        (
            format!("{device}[[rails]]\nname = 'a'\nethernet = 'a/b'\n"),
            "6:12: `a/b` is no name of an interface: `ip link` lists them",
        ),
        (
            "name = 'x'\n".to_owned(),
            "2:1: this node would do nothing: add [[devices]] to lend, [[loans]] to borrow, or [[domains]] with slots",
        ),
        ("[[loans]]\nnbd = '/s'\n".to_owned(), "1:1: this loan names no lender; add `line` or `line_file`"),
        (
            format!("[[loans]]\nline = '{LINE}'\nnbd = '/s'\nio_timeout_s = 0\n"),
            "4:16: io_timeout_s is a number of seconds from 1 to 86400",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error(&text), expected, "{text}");
    }
}

#[test]
fn wrong_kinds_and_broken_syntax_have_a_place() {
    assert!(error("insecure = 'yes'\n").starts_with("1:12: "), "{}", error("insecure = 'yes'\n"));
    assert!(error("\n\nname = \n").starts_with("3:"), "{}", error("\n\nname = \n"));
    assert!(error("devices = 3").starts_with("1:11: "), "{}", error("devices = 3"));
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = "name = '/'\n[[devices]]\nfunction = 'A'\nsource = ''\nblock_size = 1\n";
    let lines: Vec<String> = parse(text).unwrap_err().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 4, "{lines:#?}");
}

#[test]
fn nothing_stands_twice() {
    let twice = |extra: &str| {
        let text = format!(
            "[[devices]]\nfunction = 'a'\nsource = 'x.img'\n[[rails]]\nname = 'r'\nlisten = '10.0.0.1'\n\
             [[loans]]\nline = '{LINE}'\nnbd = '/s'\n{extra}"
        );
        error(&text)
    };
    assert!(twice("[[devices]]\nfunction = 'b'\nsource = 'x.img'\n").contains("in line 3 already"));
    assert!(twice("[[rails]]\nname = 'r'\nlisten = '10.0.0.2'\n").contains("in line 5 already"));
    assert!(twice("[[rails]]\nname = 's'\nlisten = '10.0.0.1'\n").contains("in line 6 already"));
    assert!(twice(&format!("[[loans]]\nline = '{LINE}'\nnbd = '/s'\n")).contains("in line 9 already"));
}

#[test]
fn lines_are_checked_and_never_shown() {
    let mistyped = LINE.replacen("000g", "000h", 1);
    let shown = error(&format!("[[loans]]\nline = '{mistyped}'\nnbd = '/s'\n"));
    assert!(shown.starts_with("2:8: typing error in the key"), "{shown}");
    for text in [
        format!("[[loans]]\nline = '{LINE}'\nnbd = 3\n"),
        format!("[[loans]]\nline = ['{LINE}']\nnbd = '/s'\n"),
        format!("insecure = '{LINE}'\n"),
        format!("'{LINE}' = 1\n"),
        format!("name = '{LINE}'\n"),
        format!("[[loans]]\nline = '{LINE}\nnbd = '/s'\n"),
    ] {
        assert!(!error(&text).contains("40r40m30e2"), "shows the key: {}", error(&text));
    }
}

#[test]
fn line_files_are_read_beside_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("n.toml");
    let text = "[[loans]]\nline_file = 'x.line'\nnbd = '/s'\n";
    let missing = Config::parse(text, &path).unwrap_err().to_string();
    assert!(
        missing.contains(":2:13: cannot read the loan line from") && missing.contains("x.line"),
        "{missing}"
    );
    std::fs::write(folder.path().join("x.line"), format!("{LINE}\n")).unwrap();
    assert_eq!(Config::parse(text, &path).unwrap().loans[0].line.reveal(), LINE);
}

/// Nobody writes into the pipe: a node that read it would wait for ever.
#[test]
fn only_regular_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let [pipe, config] = ["pipe", "n.toml"].map(|name| folder.path().join(name));
    let (here, fifo) = (rustix::fs::CWD, rustix::fs::FileType::Fifo);
    rustix::fs::mknodat(here, &pipe, fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    std::fs::write(&config, "[[loans]]\nline_file = 'pipe'\nnbd = '/s'\n").unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        [pipe, config]
            .iter()
            .for_each(|path| tell.send(Config::load(path).unwrap_err().to_string()).unwrap());
    });
    let told = || told.recv_timeout(Duration::from_secs(20)).expect("it waits for nobody");
    assert!(told().ends_with("pipe: it is no regular file"));
    assert!(told().contains("n.toml:2:13: cannot read the loan line from"));
}

#[test]
fn socket_paths_that_are_too_long_are_refused() {
    let text = format!("[[loans]]\nline = '{LINE}'\nnbd = '/{}'\n", "x".repeat(107));
    assert!(error(&text).starts_with("3:7: the path of a socket has at most 107 bytes"));
}

#[test]
fn too_many_entries_are_refused() {
    let devices = |count| -> String {
        (0..count).map(|at| format!("[[devices]]\nfunction = 'd{at}'\nsource = 'ram:1M'\n")).collect()
    };
    assert!(parse(&devices(DEVICES_MAX)).is_ok());
    assert!(error(&devices(DEVICES_MAX + 1)).contains(&format!("at most {DEVICES_MAX} devices")));
    let split = |at| format!("[[devices]]\nfunction = 's{at}'\nsource = 'ram:1M'\nfunctions = 64\n");
    let split = (0..ENTRIES_MAX / 64 - 1).map(split).collect::<String>();
    assert!(parse(&format!("{split}{}", devices(64))).is_ok());
    assert!(error(&format!("{split}{}", devices(65))).contains("functions, loans and slots together"));
    let slot = |at| format!("[[domains.slots]]\nname = 's{at}'\nsocket = 's{at}'\n");
    let slots: String = (0..=SLOTS_MAX).map(slot).collect();
    let slots = error(&format!("[[domains]]\nname = 'vm1'\nkind = 'vm'\n{slots}"));
    assert!(slots.contains(&format!("at most {SLOTS_MAX} slots")), "{slots}");
}

#[test]
fn machines_have_slots() {
    let text = format!(
        "[[domains]]\nname = 'vm1'\nkind = 'vm'\nqmp = 'vm1.qmp'\nremove_after_s = 7\n\
         [[domains.slots]]\nname = 'a'\nsocket = 'a.sock'\nbus = 'rp1'\nmode = '0660'\nline = '{LINE}'\n\
         [[domains.slots]]\nname = 'b'\nsocket = '/run/b.sock'\nbus = 'rp2'\non_silence = 'hold(60)'\n"
    );
    let domain = parse(&text).unwrap().domains.remove(0);
    assert_eq!((domain.name.as_str(), domain.remove_after.as_secs()), ("vm1", 7));
    assert_eq!(domain.qmp.as_deref(), Some(Path::new("/etc/causeway/vm1.qmp")));
    let [a, b] = &domain.slots[..] else { panic!("{domain:?}") };
    assert_eq!((a.bus.as_deref(), a.access.mode, a.preset.is_some()), (Some("rp1"), Some(0o660), true));
    assert_eq!((b.socket.as_path(), b.preset.is_none()), (Path::new("/run/b.sock"), true));
    let after_a_minute = Some(manager::model::OnSilence::Hold { seconds: 60 });
    assert_eq!((a.on_silence, b.on_silence), (None, after_a_minute));
    for (from, to, expected) in [
        ("'vm'", "'pod'", "3:8: `pod` is no kind of domain; there is \"vm\""),
        ("= 7", "= 0", "5:18: remove_after_s is a number of seconds from 1 to 3600"),
        ("'b'", "'a'", "13:8: slot `a` stands in line 7 already"),
        ("/run/b", "a", "14:10: socket `a.sock` stands in line 8 already"),
        ("0660", "rw", "10:8: `rw` is no mode"),
        ("hold(60)", "hold(-1)", "16:14: what becomes of it in silence is `hold(SECONDS)`"),
        ("hold(60)", "wait", "16:14: what becomes of it in silence is"),
        ("bus = 'rp2'", "", "12:1: a slot that `qmp` plugs in needs `bus`"),
    ] {
        let text = text.replacen(from, to, 1);
        assert!(error(&text).starts_with(expected), "{}", error(&text));
    }
    let error = error("[[domains]]\nname = 'x'\nkind = 'vm'\n");
    assert!(error.starts_with("1:1: a domain needs slots"), "{error}");
}

#[test]
fn a_node_has_a_block_of_domains() {
    let block = |text: &str| parse(&format!("domain_block = '{text}'\n{DRIVE}"));
    assert_eq!(block("4096/16").unwrap().domain_block, base::ids::DomainBlock::new(4096, 16));
    assert_eq!(parse(DRIVE).unwrap().domain_block, None);
    for wrong in ["4096", "4097/16", "4096/12", "0/16", "262144/1", "-1/1", "4096/16/2", ""] {
        let told = block(wrong).unwrap_err().to_string();
        assert!(told.contains("1:16: ") && told.contains("is no block of domains: BASE/LEN"), "{told}");
    }
}

const DRIVE: &str = "[[devices]]\nfunction = 'd'\nsource = 'ram:1M'\n";

#[test]
fn a_drive_is_split_or_declared_function_by_function() {
    let split = parse(&format!("{DRIVE}functions = 3\niops = 5\n")).unwrap();
    assert_eq!(split.devices[0].layout, Layout::Split(3));
    assert_eq!(split.devices[0].limit.iops(), Some(5));
    let text = "iops = 7
[[devices.functions]]
name = 'a'
namespace = 'data'
[[devices.functions]]
name = 'b'
size = '64k'
iops = 9
bytes_per_s = 10
[[devices.functions]]
name = 'c'
namespace = 'data'
[[devices.namespaces]]
name = 'data'
size = '4k'
shared = true
read_only = true
";
    let Layout::Declared { namespaces, functions } =
        parse(&format!("{DRIVE}{text}")).unwrap().devices.remove(0).layout
    else {
        panic!("not declared")
    };
    assert_eq!(namespaces.iter().map(|it| it.bytes).collect::<Vec<_>>(), [Some(4096), Some(65536)]);
    assert!(namespaces[0].shared && namespaces[0].read_only && !namespaces[1].shared);
    assert_eq!(functions.iter().map(|it| it.namespace).collect::<Vec<_>>(), [0, 1, 0]);
    let limits: Vec<_> = functions.iter().map(|it| (it.limit.iops(), it.limit.bytes_per_s())).collect();
    assert_eq!(limits, [(Some(7), None), (Some(9), Some(10)), (Some(7), None)]);
}

#[test]
fn drives_that_make_no_sense_are_refused_by_name() {
    let function = |name: &str, more: &str| format!("[[devices.functions]]\nname = '{name}'\n{more}\n");
    let data = |more: &str| format!("[[devices.namespaces]]\nname = 'data'\nsize = '4k'\n{more}\n");
    let on_data = "namespace = 'data'";
    for (text, what) in [
        ("functions = 65\n".to_owned(), "4:13: a drive has 0 to 64 virtual functions, not 65"),
        ("functions = -1\n".to_owned(), "not -1"),
        ("functions = 'all'\n".to_owned(), "a number of functions"),
        ("iops = 0\n".to_owned(), "4:8: a limit of 0 for iops would stop the function"),
        (function("a", "bytes_per_s = -1"), "6:15: a limit of -1 for bytes_per_s"),
        (function("a", on_data), "there is no namespace `data`"),
        (function("a", on_data) + &function("b", on_data) + &data(""), "does not say `shared = true`"),
        (function("a", "namespace = 'data'\nsize = '4k'") + &data(""), "has a size already"),
        (function("a", "") + &function("a", ""), "function `a` stands in line"),
        (function("a", "size = '1000'"), "whole blocks of 512 bytes"),
        (data(""), "namespaces need [[devices.functions]]"),
        (format!("functions = 2\n{}", data("")), "makes its own namespaces"),
    ] {
        let text = format!("{DRIVE}{text}");
        assert!(error(&text).contains(what), "{what}: {}\n{text}", error(&text));
    }
    let twice = format!("{DRIVE}functions = 2\n[[devices]]\nfunction = 'd-2'\nsource = 'ram:2M'\n");
    assert!(error(&twice).contains("function `d-2` stands in line 2 already"));
}

#[test]
fn endless_files_are_not_read() {
    let long = tempfile::NamedTempFile::new().unwrap();
    long.as_file().set_len(FILE_BYTES_MAX + 1).unwrap();
    let error = Config::load(long.path()).unwrap_err();
    assert!(matches!(error, ConfigError::TooLong { .. }), "{error}");
    let error = Config::load(Path::new("/dev/zero")).unwrap_err();
    assert!(matches!(error, ConfigError::Unreadable { .. }), "{error}");
    let error = Config::load(Path::new("/nonexistent/n.toml")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/n.toml"), "{error}");
}

/// A node that was started so reads its file again by its whole path.
#[test]
fn a_file_says_the_same_by_its_name_and_by_its_whole_path() {
    let here = Path::new("../../examples/share-one-drive.toml");
    let named = Config::load(here).unwrap();
    assert_eq!(named, Config::load(&std::path::absolute(here).unwrap()).unwrap());
    let text = "[[devices]]\nfunction = \"d\"\nsource = \"d.img\"\n";
    let folder = tempfile::tempdir_in(".").unwrap();
    let path = Path::new(folder.path().file_name().unwrap()).join("n.toml");
    std::fs::write(&path, text).unwrap();
    let source = Config::load(&path).unwrap().devices[0].source.to_string();
    assert!(source.starts_with('/') && source.ends_with("/d.img"), "{source}");
}

#[test]
fn every_example_is_right() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    // Beside the lines that some of them want to find.
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines/rack-store");
    std::fs::create_dir_all(&lines).unwrap();
    for line in [folder.path().join("nvme0.line"), folder.path().join("root.line"), lines.join("nvme0.line")]
    {
        std::fs::write(line, LINE).unwrap();
    }
    let mut seen = 0;
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        // Files of racks are tested where racks are read.
        let is_rack = path.ends_with("rack.toml") || path.ends_with("fabric-rack.toml");
        if path.extension().is_some_and(|ending| ending == "toml") && !is_rack {
            let copy = folder.path().join(path.file_name().unwrap());
            std::fs::copy(&path, &copy).unwrap();
            Config::load(&copy).unwrap_or_else(|error| panic!("{error}"));
            seen += 1;
        }
    }
    assert!(seen >= 3, "the examples have moved");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(
        text in ".{0,300}",
        piece in "(name|rails|\\[\\[loans\\]\\]|=|'|\n|\\{|\\}|1|nbd|line){0,40}",
    ) {
        let _ = parse(&text);
        let _ = parse(&piece);
    }
}

#[test]
fn a_device_is_in_its_own_group_or_the_nodes() {
    let groups = |text: &str| {
        let config = parse(text).map_err(|error| error.to_string())?;
        Ok::<_, String>(config.devices.iter().map(|device| device.group.0).collect::<Vec<_>>())
    };
    assert_eq!(groups(DRIVE), Ok(vec![1]));
    assert_eq!(groups(&format!("group = 7\n{DRIVE}")), Ok(vec![7]));
    assert_eq!(groups(&format!("group = 7\n{DRIVE}group = 4094\n")), Ok(vec![4094]));
    for wrong in [0, 4095, -1, 65_537] {
        let refused = groups(&format!("{DRIVE}group = {wrong}\n")).unwrap_err();
        assert!(refused.contains(&format!("group {wrong} is none: 1 to 4094")), "{refused}");
        let refused = groups(&format!("group = {wrong}\n{DRIVE}")).unwrap_err();
        assert!(refused.contains("1:9: group"), "{refused}");
    }
}

#[test]
fn a_function_is_in_its_own_group_or_its_devices() {
    let function = |name: &str, group: &str| format!("[[devices.functions]]\nname = '{name}'\n{group}\n");
    let groups = |group: &str| {
        let text = format!("{DRIVE}group = 7\n{}{}", function("a", ""), function("b", group));
        let config = parse(&text).map_err(|error| error.to_string())?;
        let Layout::Declared { functions, .. } = &config.devices[0].layout else { panic!("declared") };
        Ok::<_, String>(functions.iter().map(|function| function.group.0).collect::<Vec<_>>())
    };
    assert_eq!(groups(""), Ok(vec![7, 7]));
    assert_eq!(groups("group = 4094"), Ok(vec![7, 4094]));
    for wrong in ["0", "4095", "-1"] {
        let refused = groups(&format!("group = {wrong}")).unwrap_err();
        assert!(refused.contains(&format!("group {wrong} is none: 1 to 4094")), "{refused}");
    }
    let refused = groups("group = 'vm'").unwrap_err();
    assert!(refused.contains("10:9: ") && refused.contains("expected i64"), "{refused}");
}

#[test]
fn a_ledger_has_a_size() {
    assert_eq!(parse(DRIVE).unwrap().ledger, None);
    let size = parse(&format!("ledger = '64M'\n{DRIVE}")).unwrap().ledger;
    assert_eq!(size.map(|size| size.0), Some(64 << 20));
    let refused = parse(&format!("ledger = 'large'\n{DRIVE}")).unwrap_err().to_string();
    assert!(refused.contains("1:10: `large` is no size"), "{refused}");
}
