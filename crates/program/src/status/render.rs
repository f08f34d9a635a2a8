//! The status for people: one screen, columns aligned, nothing that is empty.

use std::fmt::Write;

use super::{Role, Status, SwitchPartition};
use crate::cli::ByteSize;

/// The status as text that ends with a newline.
pub fn render(status: &Status) -> String {
    let node = &status.node;
    let mut text =
        format!("node {}, process {}, incarnation {}", shown(&node.name), node.pid, node.incarnation);
    if let Some(http) = &node.http {
        text.push_str(&format!(", http://{}", shown(http)));
    }
    if node.identity_shared {
        text.push_str(", another program has its identity");
    }
    text.push('\n');

    let mut section = |heading: &[&str], rows: Vec<Vec<String>>| table(&mut text, heading, &rows);
    section(&["FUNCTION", "KIND", "SIZE", "IO", "ACCESS", "LIMIT", "LENT TO", "SOURCE"], devices(status));
    section(&["LOAN", "GEN", "ROLE", "STATE", "PEER", "EDGE"], loans(status));
    section(RAILS, rails(status));
    section(&["CHANNEL", "GROUP", "STATE", "SEALED", "SENT", "RECEIVED", "RETRANSMITTED"], channels(status));
    section(&["STREAM", "DIRECTION", "IN FLIGHT", "REPLAY"], streams(status));
    section(PORTS, switch_ports(status));
    section(PARTITIONS, partitions(status.switch.iter().flat_map(|switch| &switch.partitions)));
    section(&["CARD", "GEN", "RESTARTS", "STATE", "LAST RECOVERY"], cards(status));
    counters(&mut text, status);
    text
}

/// The rails alone, or the ports of a switch.
pub(crate) fn render_links(status: &Status) -> String {
    let mut text = String::new();
    match status.switch {
        Some(_) => table(&mut text, PORTS, &switch_ports(status)),
        None => table(&mut text, RAILS, &rails(status)),
    }
    text.split_off(usize::from(!text.is_empty()))
}

/// The partitions of a switch alone.
pub(crate) fn render_partitions(list: &[SwitchPartition]) -> String {
    let mut text = String::new();
    table(&mut text, PARTITIONS, &partitions(list.iter()));
    text.split_off(usize::from(!text.is_empty()))
}

/// Of a table of partitions.
const PARTITIONS: &[&str] = &["PARTITION", "EPOCH", "OWNER", "PORTS"];

fn partitions<'a>(list: impl Iterator<Item = &'a SwitchPartition>) -> Vec<Vec<String>> {
    let row = |it: &SwitchPartition| {
        let owner = it.owner.clone().unwrap_or_else(|| "nobody".to_owned());
        vec![it.name.clone(), it.epoch.to_string(), owner, it.ports.join(", ")]
    };
    list.map(row).collect()
}

/// Of a table of a switch's ports.
const PORTS: &[&str] = &["PORT", "PARTITION", "STATE", "RECEIVED", "SENT", "DROPPED", "LOCAL", "PEER"];

/// Of a table of rails.
const RAILS: &[&str] = &["RAIL", "MEDIUM", "STATE", "RTT", "LOSS", "LOCAL", "PEER"];

fn devices(status: &Status) -> Vec<Vec<String>> {
    let row = |device: &super::Device| {
        let access = if device.read_only { "read-only" } else { "read-write" };
        let access = if device.media == "failed" { "flushes fail" } else { access };
        vec![
            device.function.clone(),
            device.kind.clone(),
            ByteSize(device.bytes).to_string(),
            device.io.clone(),
            access.to_owned(),
            limit(device),
            device.lent_to.clone().unwrap_or_else(|| "nobody".to_owned())
                + if device.kept_s.is_some() { " (kept)" } else { "" }
                + if device.leaving { ", then nobody" } else { "" },
            device.source.clone(),
        ]
    };
    status.devices.iter().map(row).collect()
}

fn switch_ports(status: &Status) -> Vec<Vec<String>> {
    let row = |port: &super::SwitchPort| {
        let dropped = port.dropped.iter().filter(|(_, count)| **count > 0);
        let dropped: Vec<_> = dropped.map(|(reason, count)| format!("{count} {reason}")).collect();
        let standby = port.standby_for.as_ref().map(|of| format!(", stands by for {of}")).unwrap_or_default();
        vec![
            port.name.clone(),
            port.partition.clone(),
            port.state.clone() + &standby,
            port.received_frames.to_string(),
            port.sent_frames.to_string(),
            if dropped.is_empty() { "none".to_owned() } else { dropped.join(", ") },
            port.local.clone(),
            port.peer.clone(),
        ]
    };
    status.switch.iter().flat_map(|switch| &switch.ports).map(row).collect()
}

fn limit(device: &super::Device) -> String {
    let iops = device.iops.map(|iops| format!("{iops} iops"));
    let bytes = device.bytes_per_s.map(|bytes| format!("{}/s", ByteSize(bytes)));
    [iops, bytes].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn loans(status: &Status) -> Vec<Vec<String>> {
    let row = |loan: &super::Loan| {
        let role = match loan.role {
            Role::Lender => "lender",
            Role::Borrower => "borrower",
        };
        let edge = loan.edge.clone().unwrap_or_default();
        let generation = loan.generation.to_string();
        let state = match loan.silent_s.map(age) {
            Some(_) if loan.kept_s.is_some() => {
                format!("kept for {} yet", age(loan.kept_s.unwrap_or_default()))
            }
            Some(age) if loan.state == "silent" => format!("silent for {age}"),
            Some(age) => format!("{}, silent for {age}", loan.state),
            None => loan.state.clone(),
        };
        let state = if loan.leaving { format!("{state}, leaving") } else { state };
        let state = if loan.identity_shared {
            format!("{state}, two programs have its peer's identity")
        } else {
            state
        };
        vec![loan.function.clone(), generation, role.to_owned(), state, loan.peer.clone(), edge]
    };
    status.loans.iter().map(row).collect()
}

fn rails(status: &Status) -> Vec<Vec<String>> {
    let row = |rail: &super::Rail| {
        vec![
            rail.name.clone(),
            rail.medium.clone(),
            rail.state.clone(),
            rail.rtt_us.map(|rtt| seconds(rtt / 1e6)).unwrap_or_default(),
            format!("{:.2} %", rail.loss_ratio * 100.0),
            rail.local.clone(),
            rail.peer.clone(),
        ]
    };
    status.rails.iter().map(row).collect()
}

fn channels(status: &Status) -> Vec<Vec<String>> {
    let row = |channel: &super::Channel| {
        vec![
            channel.peer.clone(),
            channel.group.to_string(),
            channel.state.clone(),
            match (channel.sealed, &channel.cipher) {
                (false, _) => "NO".to_owned(),
                (true, Some(cipher)) => cipher.clone(),
                (true, None) => "yes".to_owned(),
            },
            channel.sent_frames.to_string(),
            channel.received_frames.to_string(),
            channel.retransmissions.to_string(),
        ]
    };
    status.channels.iter().map(row).collect()
}

fn streams(status: &Status) -> Vec<Vec<String>> {
    let row = |stream: &super::Stream| {
        let replay = ByteSize(stream.replay_bytes).to_string();
        vec![stream.loan.clone(), stream.direction.clone(), stream.in_flight.to_string(), replay]
    };
    status.streams.iter().map(row).collect()
}

fn cards(status: &Status) -> Vec<Vec<String>> {
    let row = |card: &super::Card| {
        vec![
            card.pid.map(|pid| pid.to_string()).unwrap_or_default(),
            card.generation.to_string(),
            card.restarts.to_string(),
            card.state.clone(),
            card.last_recovery_s.map(seconds).unwrap_or_default(),
        ]
    };
    status.cards.iter().map(row).collect()
}

/// Only what is not zero: on a healthy node that is nothing.
fn counters(text: &mut String, status: &Status) {
    let counted: Vec<String> = status
        .counters
        .all()
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{} {count}", shown(name)))
        .collect();
    if !counted.is_empty() {
        let _ = writeln!(text, "\nCOUNTED  {}", counted.join(", "));
    }
}

pub(crate) fn table(text: &mut String, heading: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let cell = |value: &str| if value.is_empty() { "-".to_owned() } else { shown(value) };
    let heading: Vec<String> = heading.iter().map(|title| (*title).to_owned()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|value| cell(value)).collect()).collect();
    let lines = || std::iter::once(&heading).chain(&rows);
    let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    text.push('\n');
    for line in lines() {
        let padded: Vec<String> =
            line.iter().zip(&widths).map(|(value, &width)| format!("{value:width$}")).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
}

/// Text of another process, without what a terminal would obey.
pub(crate) fn shown(value: &str) -> String {
    value.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

/// For how long: people count in whole seconds, minutes, hours.
pub(crate) fn age(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}
