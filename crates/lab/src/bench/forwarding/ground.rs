//! Where the ends, the switch and the loop meet: ports of one address over UDP, or interfaces on one bridge.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use io::address::RailAddress;
use io::rail::ethernet::{EthernetSocket, Mac};
use io::rail::udp::UdpSocket;
use io::rail::{RailOptions, RailSocket};
use program::exit::Failure;

use crate::local::own_address;

/// What frames travel by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Between {
    /// On loopback.
    Udp,
    /// Between interfaces of a network name space that is this program's alone.
    Ethernet,
}

/// A place to send from and to.
#[derive(Clone, Copy)]
pub(super) enum Port {
    Left = 1,
    Right,
    SwitchLeft,
    SwitchRight,
    LoopLeft,
    LoopRight,
}

impl Port {
    const ALL: [Self; 6] =
        [Self::Left, Self::Right, Self::SwitchLeft, Self::SwitchRight, Self::LoopLeft, Self::LoopRight];

    fn interface(self) -> String {
        format!("port{}", self as u8)
    }

    fn mac(self) -> Mac {
        Mac([2, 0, 0, 0, 0, self as u8])
    }
}

/// All of them.
pub(super) enum Ground {
    Udp(Ipv4Addr),
    Ethernet,
}

impl Ground {
    /// Makes the interfaces, if it takes any.
    pub(super) fn new(between: Between) -> Result<Self, Failure> {
        match between {
            Between::Udp => Ok(Self::Udp(own_address())),
            Between::Ethernet => {
                is_network_our_own()?;
                ip("link set lo up")?;
                ip("link add bridge0 type bridge")?;
                ip("link set bridge0 up")?;
                Port::ALL.into_iter().try_for_each(plug_in)?;
                Ok(Self::Ethernet)
            }
        }
    }

    /// A socket there.
    pub(super) fn bind(&self, port: Port) -> Result<Box<dyn RailSocket>, Failure> {
        let options = RailOptions::default();
        match self {
            Self::Udp(host) => UdpSocket::bind(at(*host, port), &options).map(|it| Box::new(it) as _),
            Self::Ethernet => EthernetSocket::open(&port.interface(), &options).map(|it| Box::new(it) as _),
        }
        .map_err(|error| Failure::io(format_args!("cannot have {}", self.address(port)), &error))
    }

    /// Its address.
    pub(super) fn address(&self, port: Port) -> RailAddress {
        match self {
            Self::Udp(host) => at(*host, port).into(),
            Self::Ethernet => RailAddress::Ethernet(port.mac()),
        }
    }

    /// What a switch's file says of a port of it there, with who is behind it.
    pub(super) fn keys(&self, port: Port, peer: Port) -> String {
        let place = match self {
            Self::Udp(host) => format!("listen = '{}'", at(*host, port)),
            Self::Ethernet => format!("ethernet = '{}'", port.interface()),
        };
        format!("{place}\npeer = '{}'\n", self.address(peer))
    }
}

fn at(host: Ipv4Addr, port: Port) -> SocketAddr {
    SocketAddr::from((host, 7460 + port as u16))
}

impl Drop for Ground {
    fn drop(&mut self) {
        if matches!(self, Self::Ethernet) {
            // The other end of each goes with it. Whatever stays, the name space takes along.
            for port in Port::ALL {
                let _ = ip(&format!("link del {}", port.interface()));
            }
            let _ = ip("link del bridge0");
        }
    }
}

/// Interfaces are made in no network that somebody uses: there one is up.
fn is_network_our_own() -> Result<(), Failure> {
    let told = output("ip", "-o link show up")?;
    let name = |line: &str| line.split(": ").nth(1).map(str::to_owned);
    match told.lines().filter_map(name).find(|name| name != "lo") {
        None => Ok(()),
        Some(used) => Err(Failure::refused(format_args!(
            "this case makes interfaces, and {used} is in use here: run it in a network of its own, as `unshare --net \
             causeway bench CASE`"
        ))),
    }
}

/// An interface on the bridge, which knows where it is without having heard it: some of them never send.
fn plug_in(port: Port) -> Result<(), Failure> {
    let (name, mac) = (port.interface(), port.mac());
    ip(&format!("link add {name} address {mac} type veth peer name to-{name}"))?;
    ip(&format!("link set to-{name} master bridge0"))?;
    run("bridge", &format!("fdb replace {mac} dev to-{name} master static"))?;
    ip(&format!("link set to-{name} up"))?;
    ip(&format!("link set {name} up"))
}

fn ip(words: &str) -> Result<(), Failure> {
    run("ip", words)
}

fn run(program: &str, words: &str) -> Result<(), Failure> {
    output(program, words).map(drop)
}

fn output(program: &str, words: &str) -> Result<String, Failure> {
    let output = Command::new(program).args(words.split(' ')).output();
    let output = output.map_err(|error| Failure::io(format_args!("cannot run {program}"), &error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(Failure::failed(format_args!("`{program} {words}` has failed: {}", told.trim())))
}
