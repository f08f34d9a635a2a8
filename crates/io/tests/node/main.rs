//! A lending and a borrowing node on this machine, with real agents and cards, and what befalls them: full and hanging
//! disks, no io_uring, no descriptors left. One case after the other, because limits and mounts are the whole
//! process's.
//!
//! `cargo test -p causeway-io --test node -- [PART OF A NAME]`
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod attach;
mod cases;
mod client;
mod disk;
mod flash;
mod log;
mod neighbours;
mod pair;
mod standby;
mod watchdog;

use std::process::{Command, ExitCode};

/// Given to a copy of this program that is to run one case without io_uring.
const WITHOUT_RING: &str = "--without-ring";

type Case = (&'static str, fn());

const CASES: [Case; 29] = [
    (
        "attach_takes_a_loan_and_forgets_what_was_before",
        attach::a_card_takes_a_loan_and_forgets_what_was_before,
    ),
    ("attach_without_memory_changes_nothing", attach::without_memory_changes_nothing),
    ("disk_through_the_ring", cases::disk_through_the_ring),
    ("disk_through_threads", || without_ring("disk_through_threads")),
    ("full_disk_through_the_ring", cases::full_disk_through_the_ring),
    ("hanging_disk_leaves_the_agent_awake", cases::hanging_disk_leaves_the_agent_awake),
    ("flash_takes_its_time", flash::takes_its_time),
    ("flash_of_memory_survives_its_card", flash::of_memory_survives_its_card),
    ("flash_of_a_disk_survives_its_card", flash::of_a_disk_survives_its_card),
    ("start_that_fails_is_tried_again", cases::start_that_fails_is_tried_again),
    ("clients_wait_for_descriptors", cases::clients_wait_for_descriptors),
    ("killed_client_with_a_full_ring_costs_nothing", cases::killed_client_with_a_full_ring_costs_nothing),
    (
        "farewell_loses_nothing_that_was_asked_for_before",
        cases::farewell_loses_nothing_that_was_asked_for_before,
    ),
    ("neighbours_share_memory_and_survive_kills", neighbours::share_memory_and_survive_kills),
    ("neighbours_find_a_new_agent", neighbours::find_a_new_agent),
    ("neighbours_are_called_by_a_lender_that_has_moved", neighbours::are_called_by_a_lender_that_has_moved),
    ("neighbours_that_are_abandoned_go_on", neighbours::that_are_abandoned_go_on),
    ("neighbours_that_do_not_want_to_share_nothing", neighbours::that_do_not_want_to_share_nothing),
    ("neighbours_without_the_key_get_nothing", neighbours::without_the_key_get_nothing),
    ("neighbours_that_write_rubbish_hurt_themselves", neighbours::that_write_rubbish_hurt_themselves),
    ("neighbours_that_sleep_are_woken", neighbours::that_sleep_are_woken),
    ("standby_takes_over", standby::takes_over),
    ("standby_that_dies_costs_nothing", standby::that_dies_costs_nothing),
    ("standby_knows_what_has_come", attach::who_stands_by_knows_what_has_come),
    (
        "standby_that_knows_too_little_is_passed_over",
        attach::who_stands_by_and_knows_too_little_is_passed_over,
    ),
    ("watchdog_stopped_cards_are_replaced", watchdog::stopped_cards_are_replaced),
    ("watchdog_cards_that_spin_are_replaced", watchdog::cards_that_spin_are_replaced),
    ("watchdog_leaves_a_debugger_alone", watchdog::cards_with_a_debugger_are_left_alone),
    ("watchdog_kills_nobody_on_a_busy_machine", watchdog::busy_machine_kills_nobody),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.find(|argument| !argument.starts_with("--") || argument == WITHOUT_RING);
    match first.as_deref() {
        Some("__card") => return card(),
        Some(WITHOUT_RING) => {
            forbid_ring();
            cases::disk_through_threads();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    log::listen();
    let wanted = first.unwrap_or_default();
    for (name, run) in CASES.iter().filter(|(name, _)| name.contains(&wanted)) {
        println!("case {name}");
        run();
    }
    ExitCode::SUCCESS
}

fn card() -> ExitCode {
    match io::card::run() {
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            eprintln!("card: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn without_ring(name: &str) {
    let this = std::env::current_exe().unwrap();
    assert!(Command::new(this).arg(WITHOUT_RING).status().unwrap().success(), "{name} failed");
}

/// From now on this process and its children get `EPERM` for a new ring, as in a container (seccomp(2)).
fn forbid_ring() {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const SKIP_UNLESS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(SKIP_UNLESS, 0, 1, libc::SYS_io_uring_setup as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives across the calls, which touch no other memory.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// Says that something could not be shown here. Where everything has to be shown, that is a failure.
fn skip(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot be skipped with CI=true: {why}");
    println!("SKIPPED: {why}");
}
