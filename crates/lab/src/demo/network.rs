//! The network between the two nodes of the demo, all of it on this machine.
//!
//! ```text
//!                 switch near ── wire ── switch far
//!   borrower ────┘                                └──── lender     rail 0
//!           └──────────────────────────────────────────┘           rail 1
//! ```
//!
//! Both belong to a fabric, whose manager gives them their domains. It runs beside them, and no frame passes it.
//!
//! Each demo has an address of loopback of its own, so that several run at once.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use program::exit::Failure;
use program::halt::{Halt, Interrupt};

use crate::local::{End, Fabric, Node, Scratch, Wire, own_address};

/// The rail that leads by the switches.
pub(super) const SWITCHED: &str = "rail0";
/// The other one.
const DIRECT: &str = "rail1";
/// The function that the manager says who has, and the slot of the borrower that it is assigned to.
pub(super) const ASSIGNED: &str = "nvme1";
pub(super) const SLOT: &str = "machine/slot";
/// Whose slot that is.
pub(super) const MACHINE: &str = "machine";

/// It is small: nobody uses it.
const ASSIGNED_SOURCE: &str = "ram:16M";
/// In the borrower's file. Its name and the slot's are those of [`SLOT`].
const MACHINE_TEXT: &str = "[[domains]]\nname = 'machine'\nkind = 'vm'\n\
                       [[domains.slots]]\nname = 'slot'\nsocket = 'slot.sock'\n";

/// Ports of the demo's address: each is that of one socket.
#[derive(Clone, Copy)]
enum Port {
    LenderSwitched = 7411,
    LenderDirect,
    BorrowerSwitched,
    BorrowerDirect,
    NearNode,
    NearLink,
    FarNode,
    FarLink,
    WireNear,
    WireFar,
    Manager = 7443,
}

/// A switch of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// The one that the borrower is behind.
    Near,
    /// The one that the lender is behind.
    Far,
}

impl Which {
    /// What people call it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// The manager, the switches and the wire between them.
pub(super) struct Network<'a> {
    scratch: &'a Scratch,
    interrupt: &'a Interrupt,
    host: Ipv4Addr,
    /// What both nodes belong to.
    pub(super) fabric: Fabric<'a>,
    /// The domains of the nodes, which the switches have to know beforehand.
    borrower: String,
    lender: String,
    near: Option<Node>,
    far: Option<Node>,
    /// Between the two.
    pub(super) wire: Wire,
}

impl<'a> Network<'a> {
    /// One whose manager and switches run, and that both nodes belong to.
    pub(super) fn start(scratch: &'a Scratch, interrupt: &'a Interrupt) -> Result<Self, Halt> {
        let host = own_address();
        let end = |at, plugged| End { at: address(host, at), plugged: address(host, plugged) };
        let ends = [end(Port::WireNear, Port::NearLink), end(Port::WireFar, Port::FarLink)];
        let wire = Wire::between(ends).map_err(|error| {
            Failure::io(format_args!("cannot join the demo's switches at {host}"), &error)
        })?;
        let fabric = Fabric::found(scratch, address(host, Port::Manager), interrupt)?;
        let (borrower, lender) = (fabric.join("borrower")?, fabric.join("lender")?);
        let mut network =
            Self { scratch, interrupt, host, fabric, borrower, lender, near: None, far: None, wire };
        network.start_switch(Which::Near)?;
        network.start_switch(Which::Far)?;
        Ok(network)
    }

    fn at(&self, port: Port) -> SocketAddr {
        address(self.host, port)
    }

    /// Starts a switch that does not run.
    pub(super) fn start_switch(&mut self, which: Which) -> Result<(), Halt> {
        use Port::{
            BorrowerSwitched, FarLink, FarNode, LenderSwitched, NearLink, NearNode, WireFar, WireNear,
        };
        let port = |name: &str, listen: Port, peer: Port, domains: &str| {
            let (listen, peer) = (self.at(listen), self.at(peer));
            format!(
                "[[ports]]\nname = '{name}'\nlisten = '{listen}'\npeer = '{peer}'\ndomains = ['{domains}']\n"
            )
        };
        let ports = match which {
            Which::Near => {
                port("node", NearNode, BorrowerSwitched, &self.borrower)
                    + &port("link", NearLink, WireNear, &self.lender)
            }
            Which::Far => {
                port("node", FarNode, LenderSwitched, &self.lender)
                    + &port("link", FarLink, WireFar, &self.borrower)
            }
        };
        let started = Node::start_switch(self.scratch, which.name(), &ports, self.interrupt)?;
        *self.place(which) = Some(started);
        Ok(())
    }

    /// Kills a switch with SIGKILL; returns its process id, if it ran.
    pub(super) fn kill_switch(&mut self, which: Which) -> Option<u32> {
        self.place(which).take().map(Node::kill)
    }

    fn place(&mut self, which: Which) -> &mut Option<Node> {
        match which {
            Which::Near => &mut self.near,
            Which::Far => &mut self.far,
        }
    }

    /// Frames that have come to the near switch from the borrower, since that switch was started.
    pub(super) fn switched_frames(&self) -> Result<u64, Failure> {
        let status = self.near.as_ref().map(Node::status).transpose()?;
        let ports = status.and_then(|status| status.switch).map(|switch| switch.ports).unwrap_or_default();
        Ok(ports.iter().find(|port| port.name == "node").map_or(0, |port| port.received_frames))
    }

    /// Starts the lender of an image and of a small drive in memory, and returns it with the line of the image.
    pub(super) fn lend(&self, image: &Path) -> Result<(Node, String), Halt> {
        let ends = [Port::LenderSwitched, Port::LenderDirect, Port::FarNode];
        let device = |function: &str, source: &str| {
            format!("[[devices]]\nfunction = '{function}'\nsource = '{source}'\n")
        };
        let text = self.node(ends)
            + &device("nvme0", &image.display().to_string())
            + &device(ASSIGNED, ASSIGNED_SOURCE);
        let (node, mut lines) =
            Node::start_node(self.scratch, "lender", &text, ("causeway://", 2), self.interrupt)?;
        Ok((node, lines.remove(0)))
    }

    /// Starts the borrower, and returns it with the socket that it serves: to NBD clients, or to a virtual machine.
    pub(super) fn borrow(&self, line: &str, for_vm: bool) -> Result<(Node, PathBuf), Halt> {
        let (key, file, prints) =
            if for_vm { ("vm", "vm.sock", "vfio-user:") } else { ("nbd", "nbd.sock", "nbd+unix://") };
        let socket = self.scratch.join(file);
        Node::line_file(self.scratch, line)?;
        let ends = [Port::BorrowerSwitched, Port::BorrowerDirect, Port::NearNode];
        let loan = format!("[[loans]]\nline_file = 'line'\n{key} = '{}'\n", socket.display());
        let text = self.node(ends) + &loan + MACHINE_TEXT;
        let (node, _) = Node::start_node(self.scratch, "borrower", &text, (prints, 1), self.interrupt)?;
        Ok((node, socket))
    }

    /// What stands in both nodes' files: the rails, and that they share no memory, or nobody would see a network.
    fn node(&self, [switched, direct, switch]: [Port; 3]) -> String {
        format!(
            "shm = false\n\
             [[rails]]\nname = '{SWITCHED}'\nlisten = '{}'\nswitch = '{}'\n\
             [[rails]]\nname = '{DIRECT}'\nlisten = '{}'\n",
            self.at(switched),
            self.at(switch),
            self.at(direct)
        )
    }

    /// Ends the switches and the manager as an operator would.
    pub(super) fn stop(self) -> Result<(), Failure> {
        let Self { near, far, fabric, .. } = self;
        [near, far].into_iter().flatten().try_for_each(Node::stop)?;
        fabric.stop()
    }
}

fn address(host: Ipv4Addr, port: Port) -> SocketAddr {
    SocketAddr::from((host, port as u16))
}
