//! `causeway link`: the links of a node that runs, or of a switch.

mod capture;
mod pcapng;

use serde::Serialize;

use super::run::{ask_status, order, print, print_json};
use super::{LinkArgs, LinkCommand, LinkListArgs, Output};
use crate::control::{Impairment, Request};
use crate::exit::Failure;
use crate::status::{Rail, SwitchPort, render_links};

pub(super) fn run(command: &LinkCommand) -> Result<(), Failure> {
    match command {
        LinkCommand::Capture(args) => capture::run(args),
        LinkCommand::List(args) => list(args),
        LinkCommand::Down(args) => cut(args, true),
        LinkCommand::Up(args) => cut(args, false),
    }
}

/// What `link list -o json` prints.
#[derive(Serialize)]
struct Document {
    version: u32,
    rails: Vec<Rail>,
    /// Of a switch alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    ports: Option<Vec<SwitchPort>>,
}

fn list(args: &LinkListArgs) -> Result<(), Failure> {
    let status = ask_status(args.name.as_ref())?;
    match args.output.format {
        Output::Text => print(&render_links(&status)),
        Output::Json => {
            let ports = status.switch.map(|switch| switch.ports);
            print_json(&Document { version: status.version, rails: status.rails, ports })
        }
    }
}

fn cut(args: &LinkArgs, cut: bool) -> Result<(), Failure> {
    let impairment =
        Impairment { rail: args.rail.clone(), cut_in: cut, cut_out: cut, ..Impairment::default() };
    order(args.name.as_ref(), &Request::Impair(impairment))
}
