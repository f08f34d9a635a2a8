//! Machines that are joined by switches: what several tests need for that.

use campaign::causeway::{START_TIMEOUT, binary, status};
use campaign::process::{Process, run};
use campaign::world::Machine;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// `ip` with these words, in the network of a machine.
pub(crate) fn ip(machine: &Machine, words: &[&str]) {
    let mut command = machine.command("ip");
    command.args(words);
    run(command).unwrap();
}

/// A machine keeps these of its rails: the others lead nowhere.
pub(crate) fn keep_rails(machine: &Machine, rails: &[usize]) {
    for rail in (0..machine.addresses().len()).filter(|rail| !rails.contains(rail)) {
        ip(machine, &["link", "set", &format!("rail{rail}"), "down"]);
    }
}

/// The address of its interface. `/sys` shows those of another name space.
pub(crate) fn mac(machine: &Machine, rail: usize) -> String {
    let mut command = machine.command("ip");
    command.args(["-o", "link", "show", &format!("rail{rail}")]);
    let told = run(command).unwrap();
    let address = told.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
    format!("eth:{}", address.expect("it is an Ethernet interface"))
}

/// The id that a node is to have.
pub(crate) fn id(machine: &Machine, name: &str) -> String {
    let mut command = machine.command(binary().unwrap());
    command.args(["id", "--state-dir"]).arg(machine.dir().join("state").join(name));
    run(command).unwrap().trim().to_owned()
}

/// `ADDR:7411` of a machine on a rail.
pub(crate) fn at(machine: &Machine, rail: usize) -> String {
    format!("{}:7411", machine.addresses()[rail])
}

/// A port of a switch over UDP.
pub(crate) fn port(name: &str, listen: &str, peer: &str, rest: &str) -> String {
    format!("[[ports]]\nname = \"{name}\"\nlisten = \"{listen}\"\npeer = \"{peer}\"\n{rest}\n")
}

/// A configuration file of this name.
pub(crate) fn write(machine: &Machine, name: &str, text: &str) -> PathBuf {
    let file = machine.dir().join(format!("{name}.toml"));
    std::fs::write(&file, text).unwrap();
    file
}

/// Runs a switch with this file.
pub(crate) fn switch_command(machine: &Machine, name: &str, text: &str) -> Command {
    let file = write(machine, name, text);
    let mut command = machine.command(binary().unwrap());
    command.args(["switch", "--config"]).arg(file);
    command
}

/// A switch with this file that is there.
pub(crate) fn start(machine: &Machine, name: &str, text: &str) -> Process {
    let mut switch = machine.spawn(name, switch_command(machine, name, text)).unwrap();
    let ready = format!("switch {name}, ");
    switch.wait_line("that it is there", START_TIMEOUT, |line| line.starts_with(&ready)).unwrap();
    switch
}

/// A port of a switch, as its status tells.
pub(crate) fn port_of(machine: &Machine, switch: &str, name: &str) -> Value {
    let told = status(machine, switch).unwrap();
    let ports = told["switch"]["ports"].as_array().unwrap();
    ports.iter().find(|port| port["name"] == name).unwrap().clone()
}

/// Which of the network's packets a machine loses at one of its interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    In,
    Out,
}

/// Drops so many of a thousand packets there, by a table of its own that [`heal`] removes.
pub(crate) fn lose(machine: &Machine, device: &str, way: Way, per_mille: u16) {
    let hook = if way == Way::In { "ingress" } else { "egress" };
    let chain =
        format!("add chain netdev harm {hook} {{ type filter hook {hook} device {device} priority 0; }}");
    let rule = match per_mille {
        1000 => format!("add rule netdev harm {hook} drop"),
        some => format!("add rule netdev harm {hook} numgen random mod 1000 < {some} drop"),
    };
    for words in ["add table netdev harm", &chain, &rule] {
        let mut command = machine.command("nft");
        command.arg(words);
        run(command).unwrap();
    }
}

/// Nothing is lost there any more.
pub(crate) fn heal(machine: &Machine) {
    let mut command = machine.command("nft");
    command.arg("delete table netdev harm");
    run(command).unwrap();
}
