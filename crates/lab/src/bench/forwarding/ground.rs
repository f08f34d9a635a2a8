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

/// Interfaces are made in no network that somebody uses.
fn is_network_our_own() -> Result<(), Failure> {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
    let own = of("self").map_err(|error| Failure::io("cannot tell which network this is", &error))?;
    // Whoever may not look at the first process is in another name space than that.
    if of("1").is_ok_and(|first| first == own) {
        let what = "this case makes interfaces, so it runs in a network of its own: `unshare --net causeway bench ...`";
        return Err(Failure::refused(what));
    }
    Ok(())
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
    let output = Command::new(program).args(words.split(' ')).output();
    let output = output.map_err(|error| Failure::io(format_args!("cannot run {program}"), &error))?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(Failure::failed(format_args!("`{program} {words}` has failed: {}", told.trim())))
}
