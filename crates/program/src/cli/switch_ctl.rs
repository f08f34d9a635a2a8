//! `causeway switch ctl`: takes partitions of a switch, and moves ports between them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use node::NodeKey;
use node::errand::{Asker, Heard};
use serde::Serialize;

use super::run::{print, print_json};
use super::{CtlArgs, CtlOrder, Output};
use crate::exit::Failure;
use crate::state_dir::{self, StateDir};
use crate::status::{self, SwitchPartition, render_partitions};
use crate::switch_control::{Order, Reply, SwitchUrl};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often what was sent is sent again meanwhile.
const AGAIN: Duration = Duration::from_millis(200);
/// Most bytes of a datagram.
const DATAGRAM_MAX: usize = 65_535;

/// What `show -o json` prints.
#[derive(Serialize)]
struct Document {
    version: u32,
    partitions: Vec<SwitchPartition>,
}

pub(super) fn run(args: &CtlArgs) -> Result<(), Failure> {
    let folder = match (&args.state_dir, &args.name) {
        (Some(folder), _) => folder.clone(),
        (None, Some(name)) => state_dir::default_path(name)?,
        (None, None) => {
            return Err(Failure::usage(
                "as whom? Give --name NAME, or --state-dir DIR, of a node of this machine",
            ));
        }
    };
    let own = StateDir::key_pair(&folder)?.ok_or_else(|| {
        let folder = folder.display();
        Failure::usage(format_args!(
            "no node has its key in {folder}: `causeway id --state-dir {folder}` makes one"
        ))
    })?;
    let partitions = match &args.order {
        CtlOrder::Show { .. } => ask(&args.url, (&own, &folder), &Order::Show {})?,
        CtlOrder::Take { partitions, epoch } => {
            let epoch = match epoch {
                Some(epoch) => *epoch,
                None => next_epoch(&args.url, (&own, &folder), partitions)?,
            };
            ask(&args.url, (&own, &folder), &Order::Take { partitions: partitions.clone(), epoch })?
        }
        CtlOrder::Move { ports, to, epoch } => {
            let epochs = epochs(&args.url, (&own, &folder), *epoch)?;
            ask(&args.url, (&own, &folder), &Order::Move { ports: ports.clone(), to: to.clone(), epochs })?
        }
        CtlOrder::Peer { port, peer, epoch } => {
            let epochs = epochs(&args.url, (&own, &folder), *epoch)?;
            ask(&args.url, (&own, &folder), &Order::Peer { port: port.clone(), peer: *peer, epochs })?
        }
    };
    match &args.order {
        CtlOrder::Show { output } if output.format == Output::Json => {
            print_json(&Document { version: status::VERSION, partitions })
        }
        _ => print(&render_partitions(&partitions)),
    }
}

/// The least epoch by which all of these can be taken now. Whoever takes one of them meanwhile is not overtaken by
/// that.
fn next_epoch(url: &SwitchUrl, own: (&NodeKey, &Path), names: &[String]) -> Result<u64, Failure> {
    let all = ask(url, own, &Order::Show {})?.into_iter();
    let present = all.filter(|it| names.contains(&it.name)).map(|it| it.epoch).max();
    Ok(present.unwrap_or_default().saturating_add(1))
}

/// By which epochs the partitions are to be had: by this one, or by those by which they are had now.
fn epochs(
    url: &SwitchUrl,
    own: (&NodeKey, &Path),
    epoch: Option<u64>,
) -> Result<BTreeMap<String, u64>, Failure> {
    let id = own.0.id().to_string();
    let all = ask(url, own, &Order::Show {})?.into_iter();
    Ok(match epoch {
        Some(epoch) => all.map(|it| (it.name, epoch)).collect(),
        None => all.filter(|it| it.owner.as_ref() == Some(&id)).map(|it| (it.name, it.epoch)).collect(),
    })
}

/// Asks, and waits for what came of it.
fn ask(
    url: &SwitchUrl,
    (own, folder): (&NodeKey, &Path),
    order: &Order,
) -> Result<Vec<SwitchPartition>, Failure> {
    let question = serde_json::to_vec(order).expect("an order is plain structs, which serialise");
    let random = (u64::from_le_bytes(state_dir::random(folder)?), state_dir::random(folder)?);
    let mut asker = Asker::new(own, url.key, question, random)
        .ok_or_else(|| Failure::usage("that is more than a switch can be asked at once"))?;
    let anywhere: SocketAddr =
        if url.at.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let failed =
        |error: std::io::Error| Failure::io(format_args!("cannot ask the switch at {}", url.at), &error);
    let socket = UdpSocket::bind(anywhere).map_err(failed)?;
    socket.set_read_timeout(Some(AGAIN)).map_err(failed)?;
    let until = Instant::now() + PATIENCE;
    let mut buffer = vec![0; DATAGRAM_MAX];
    while Instant::now() < until {
        // Where nobody listens the kernel says so at once, and somebody may come.
        let _ = socket.send_to(asker.saying(), url.at);
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if from != url.at {
                continue;
            }
            match asker.handle(&buffer[..len]) {
                Heard::Nothing => {}
                Heard::Answer => break,
                Heard::Reply(text) => return read(url, &text),
            }
        }
        if Instant::now() < until && socket.take_error().is_ok_and(|error| error.is_some()) {
            std::thread::sleep(AGAIN);
        }
    }
    let seconds = PATIENCE.as_secs();
    Err(Failure::unreachable(format_args!(
        "no switch with this key answers at {} within {seconds} s: does it run, with this `control`, and is the URL \
         the one that it prints?",
        url.at
    )))
}

fn read(url: &SwitchUrl, text: &[u8]) -> Result<Vec<SwitchPartition>, Failure> {
    match serde_json::from_slice(text) {
        Ok(Reply::Done { partitions }) => Ok(partitions),
        Ok(Reply::Refused { why }) => Err(Failure::refused(format_args!("the switch refused: {why}"))),
        Err(_) => Err(Failure::refused(format_args!(
            "the switch at {} has answered what this version does not understand",
            url.at
        ))),
    }
}
