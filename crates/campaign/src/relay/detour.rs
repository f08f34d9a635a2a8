//! A detour for programs that are told where the other one is, such as a node and the port of a switch: each is told an
//! address of the detour, whose wires are as bad as a test wants them.
//!
//! ```text
//!   program <-> near ── detour ── far <-> other
//! ```

use super::ANSWER_TIMEOUT;
use super::forward::{large_buffer, read_commands};
use super::impair::{Datagram, Wire};
use crate::Error;
use crate::process::Process;
use crate::world::{Machine, support_program};
use base::Impairment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Datagrams taken from one socket before the other has its turn.
const BURST: usize = 64;

/// A running detour. Dropped, it ends.
pub struct Detour {
    process: Process,
}

impl Detour {
    /// In the network of `machine`, between `program`, which knows `near`, and `other`, which knows `far`; each is an
    /// address with a port.
    pub fn start(
        machine: &Machine,
        (program, near): (&str, &str),
        (far, other): (&str, &str),
    ) -> Result<Self, Error> {
        let mut command = machine.command(support_program("causeway-relay")?);
        command.args(["detour", program, near, far, other]);
        let mut process = Process::spawn_piped(command, &machine.dir().join("detour.log"))?;
        process.wait_line("\"ready\"", ANSWER_TIMEOUT, |line| line == "ready")?;
        Ok(Self { process })
    }

    /// Makes both directions so bad.
    pub fn set(&mut self, impairment: Impairment) -> Result<(), Error> {
        let line = serde_json::to_string(&impairment).expect("plain numbers always serialise");
        let stdin = self.process.stdin().ok_or_else(|| Error::unexpected("no standard input"))?;
        writeln!(stdin, "{line}").map_err(Error::io("cannot command the detour"))?;
        self.process.wait_line("\"ok\"", ANSWER_TIMEOUT, |line| line == "ok").map(drop)
    }
}

/// Carries datagrams until `commands` ends, of which each line is an [`Impairment`].
pub fn serve(
    [program, near, far, other]: [SocketAddr; 4],
    mut commands: impl Read + AsFd,
) -> Result<(), Error> {
    let bind = |address: SocketAddr| {
        let socket = UdpSocket::bind(address).map_err(Error::io(format!("cannot have {address}")))?;
        socket.set_nonblocking(true).map_err(Error::io("cannot make a socket non-blocking"))?;
        large_buffer(&socket);
        Ok::<_, Error>(socket)
    };
    let ends = [(bind(near)?, program), (bind(far)?, other)];
    println!("ready");
    let (start, mut wires, mut text) = (Instant::now(), [Wire::new(1), Wire::new(2)], Vec::new());
    let mut buffer = vec![0; 1 << 16];
    loop {
        let now = start.elapsed().as_nanos() as u64;
        let due = wires.iter().filter_map(Wire::next_due_ns).min();
        let timeout = due.map(|due| {
            let left = Duration::from_nanos(due.saturating_sub(now));
            Timespec::try_from(left).expect("a due time lies seconds ahead, not centuries")
        });
        let mut descriptors = vec![PollFd::new(&commands, PollFlags::IN)];
        descriptors.extend(ends.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN)));
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::io("cannot poll")(errno.into())),
        }
        let is_commanded = !descriptors[0].revents().is_empty();
        let now = start.elapsed().as_nanos() as u64;
        for (at, wire) in wires.iter_mut().enumerate() {
            for _ in 0..BURST {
                // An error is an ICMP answer to something sent before: that datagram is lost, as on any network.
                let Ok((length, _)) = ends[at].0.recv_from(&mut buffer) else { break };
                let payload = buffer[..length].to_vec();
                wire.handle(now, Datagram { source_port: 0, target_port: 0, payload });
            }
            let (socket, to) = &ends[1 - at];
            while let Some(datagram) = wire.poll(now) {
                // Where the interface is down it is lost.
                let _ = socket.send_to(&datagram.payload, to);
            }
        }
        if is_commanded && !read_commands(&mut commands, &mut text)? {
            return Ok(());
        }
        while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let impairment: Impairment = serde_json::from_slice(&line)
                .map_err(|error| Error::unexpected(format!("no impairment: {error}")))?;
            wires.iter_mut().for_each(|wire| wire.set(impairment));
            println!("ok");
        }
    }
}
