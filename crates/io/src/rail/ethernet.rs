//! A rail over Ethernet: one packet socket on one interface (packet(7)).
//!
//! ```text
//!  0 destination   6 source   12 0x8100   14 tag: group in 12 bits   16 0x88B5   18 frame ...
//! ```
//!
//! The payload is the frame as it is, so the interface's MTU is its size. The tag (IEEE 802.1Q §9.6) has the group that
//! the frame's header names: switches keep groups apart as VLANs, and what comes with another tag than its header says
//! is dropped. The kernel takes the tag off what comes and tells it beside the bytes
//! (`PACKET_AUXDATA`); it does so only for sockets that are bound to all protocols, which a filter makes one again.
//!
//! Opening one needs `CAP_NET_RAW`; whoever has the descriptor needs nothing more.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::str::FromStr;

use node::group_of;
use rustix::io::Errno;

use super::batch::Batched;
use super::name::{Envelope, HEAD_MAX, RawName, control_of};
use super::receive::Received;
use super::send::Datagram;
use super::{Device, RailCounters, RailFeatures, RailOptions, RailSocket, enlarge_buffers};
use crate::address::RailAddress;
use crate::filter::{self, IF_EQUAL, LOAD_HALF, LOAD_WORD, RETURN, set_option, step};

/// The protocol of frames: the first of those for local experiments (IEEE 802 §9.2.4).
pub const ETHERTYPE: u16 = 0x88b5;
/// Where information frames go: a group address of nobody's but this machine's to give (IEEE 802 §8.2.2).
pub const EVERYBODY: Mac = Mac([0x03, 0x00, 0x88, 0xb5, 0x00, 0x01]);
/// Frames of the fewest bytes that a rail is of use with: a handshake's first message has to fit.
pub const MIN_MTU: u32 = 1280;

/// Of a tag that follows (IEEE 802.1Q §9.6).
const TAG_ETHERTYPE: u16 = 0x8100;
/// Bits of a tag that name a VLAN.
const VLAN: u16 = 0x0fff;
/// What the kernel leaves in front of what has come: destination, source and protocol.
const HEADER_BYTES: usize = 14;

/// Options and flags of `linux/if_packet.h`.
const PACKET_ADD_MEMBERSHIP: libc::c_int = 1;
const PACKET_MR_MULTICAST: libc::c_ushort = 0;
const PACKET_AUXDATA: libc::c_int = 8;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;

/// `struct tpacket_auxdata`, in its order.
#[derive(Clone, Copy)]
#[repr(C)]
struct Auxiliary {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

/// The address of an Ethernet interface, EUI-48.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether one interface can have it.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// It is not six pairs of hexadecimal digits with colons between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMac;

impl FromStr for Mac {
    type Err = NoMac;

    /// In lower case: an address has one text.
    fn from_str(text: &str) -> Result<Self, NoMac> {
        let digits = |part: &str| {
            let is_pair = part.len() == 2 && part.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
            u8::from_str_radix(part, 16).ok().filter(|_| is_pair)
        };
        let bytes: Vec<u8> = text.split(':').map(digits).collect::<Option<_>>().ok_or(NoMac)?;
        bytes.try_into().map(Self).map_err(|_| NoMac)
    }
}

/// An Ethernet interface of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The kernel's number for it.
    index: u32,
    /// Its address.
    pub mac: Mac,
    /// Most bytes of a frame.
    pub mtu: u32,
    /// It is administratively up, and has a carrier.
    pub is_running: bool,
}

impl Interface {
    /// The one of this name.
    ///
    /// # Errors
    /// `ENODEV`: there is none. `EOPNOTSUPP`: it is no Ethernet interface, but loopback or a tunnel.
    pub fn find(name: &str) -> io::Result<Self> {
        let name = CString::new(name).map_err(|_| Errno::NODEV)?;
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::DGRAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        // SAFETY: the name is a C string, which the call only reads.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(Errno::NODEV.into());
        }
        let hardware = ask(&socket, &name, libc::SIOCGIFHWADDR)?;
        // SAFETY: of this answer the kernel has filled the hardware address.
        let hardware = unsafe { hardware.ifr_ifru.ifru_hwaddr };
        if hardware.sa_family != libc::ARPHRD_ETHER {
            return Err(Errno::OPNOTSUPP.into());
        }
        let mut mac = [0; 6];
        mac.iter_mut().zip(hardware.sa_data).for_each(|(to, from)| *to = from as u8);
        // SAFETY: as above, the MTU and the flags.
        let mtu = unsafe { ask(&socket, &name, libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu };
        // SAFETY: as above.
        let flags = unsafe { ask(&socket, &name, libc::SIOCGIFFLAGS)?.ifr_ifru.ifru_flags };
        let running = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let (mac, mtu) = (Mac(mac), u32::try_from(mtu).unwrap_or(0));
        Ok(Self { index, mac, mtu, is_running: flags & running == running })
    }
}

/// Asks for something about an interface (netdevice(7)).
fn ask(socket: &OwnedFd, name: &CStr, what: libc::c_ulong) -> io::Result<libc::ifreq> {
    // SAFETY: plain C data for which zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.to_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return Err(Errno::NODEV.into());
    }
    request.ifr_name.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from as libc::c_char);
    // SAFETY: the request is one the kernel may write an answer of its size to.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut request) };
    if result == 0 { Ok(request) } else { Err(io::Error::last_os_error()) }
}

/// A packet socket with its batches.
pub struct EthernetSocket {
    socket: Batched<Ends>,
    /// The kernel's number for its interface; 0, which none has, where that was gone already.
    index: u32,
}

impl EthernetSocket {
    /// Opens a socket on the interface of this name.
    ///
    /// # Errors
    /// `EPERM`: it takes `CAP_NET_RAW`. `ENODEV`, `EOPNOTSUPP`: as [`Interface::find`]. `EMSGSIZE`: its MTU is below
    /// [`MIN_MTU`].
    pub fn open(name: &str, options: &RailOptions) -> io::Result<Self> {
        let interface = Interface::find(name)?;
        if interface.mtu < MIN_MTU {
            return Err(Errno::MSGSIZE.into());
        }
        Self::bind(interface.index, libc::PACKET_HOST, options)
    }

    /// Opens a socket on the interface of this name that takes what was sent to [`EVERYBODY`], and nothing else.
    ///
    /// # Errors
    /// `EPERM`: it takes `CAP_NET_RAW`. `ENODEV`, `EOPNOTSUPP`: as [`Interface::find`].
    pub fn for_everybody(name: &str) -> io::Result<Self> {
        let index = Interface::find(name)?.index;
        let options =
            RailOptions { receive_buffer_bytes: 1 << 20, send_buffer_bytes: 1 << 20, offload: false };
        let socket = Self::bind(index, libc::PACKET_MULTICAST, &options)?;
        let mut address = [0; 8];
        address[..6].copy_from_slice(&EVERYBODY.0);
        let joined = libc::packet_mreq {
            mr_ifindex: index as libc::c_int,
            mr_type: PACKET_MR_MULTICAST,
            mr_alen: EVERYBODY.0.len() as libc::c_ushort,
            mr_address: address,
        };
        set_option(&socket, libc::SOL_PACKET, PACKET_ADD_MEMBERSHIP, &joined)?;
        Ok(socket)
    }

    /// A socket that takes packets of this type (packet(7)).
    fn bind(index: u32, packet_type: u8, options: &RailOptions) -> io::Result<Self> {
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a plain system call. Protocol 0: nothing comes before the filter is there.
        let fd = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and is nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        attach_filter(&fd, packet_type)?;
        set_option(&fd, libc::SOL_PACKET, PACKET_AUXDATA, &1_i32)?;
        // Kernels before 4.20 refuse; the filter drops what leaves as well.
        let _ = set_option(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1_i32);
        enlarge_buffers(fd.as_fd(), options);
        let mut at = link_address();
        at.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        at.sll_ifindex = index as libc::c_int;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: an address of that length, which the call only reads.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const at).cast(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::from_fd(fd)
    }

    /// Takes over a socket made by [`EthernetSocket::open`] in another process. One whose interface is gone leads
    /// nowhere: the kernel refuses what is sent.
    ///
    /// # Errors
    /// `ENOTSOCK`: it is no socket.
    pub(super) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let mut at = link_address();
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: room for an address of that length.
        if unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut at).cast(), &mut len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let index = u32::try_from(at.sll_ifindex).unwrap_or(0);
        let own = at.sll_addr.first_chunk().filter(|_| at.sll_halen == 6).copied().unwrap_or_default();
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { socket: Batched::new(fd, Ends { own: Mac(own) }, false, false)?, index })
    }

    fn mtu(&self) -> io::Result<u32> {
        Ok(Interface::find(&self.interface().ok_or(Errno::NODEV)?)?.mtu)
    }

    /// The name that its interface has now, if it is still there.
    #[must_use]
    pub fn interface(&self) -> Option<String> {
        interface_name(self.index)
    }
}

/// The name that the interface with this number has now, if it is there.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room for the longest name of an interface, which the call ends with a zero.
    let named = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    // SAFETY: it has just been written, as a C string.
    (!named.is_null()).then(|| unsafe { CStr::from_ptr(named) }.to_string_lossy().into_owned())
}

impl RailSocket for EthernetSocket {
    fn local(&self) -> RailAddress {
        RailAddress::Ethernet(self.socket.envelope.own)
    }

    fn device(&self) -> Device {
        Device::Index(self.index)
    }

    fn features(&self) -> RailFeatures {
        self.socket.features
    }

    fn counters(&self) -> RailCounters {
        self.socket.counters
    }

    fn largest_frame(&self) -> usize {
        self.mtu().unwrap_or(MIN_MTU) as usize
    }

    fn max_frame(&self, peer: RailAddress) -> io::Result<usize> {
        let RailAddress::Ethernet(_) = peer else { return Err(Errno::AFNOSUPPORT.into()) };
        Ok(self.mtu()? as usize)
    }

    fn send_batch(&mut self, datagrams: &[Datagram<'_>]) -> io::Result<usize> {
        self.socket.send(datagrams)
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(RailAddress, &mut [u8]),
    ) -> io::Result<Received> {
        self.socket.receive(limit, take)
    }
}

impl AsFd for EthernetSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Both ends of a frame are in front of it.
struct Ends {
    own: Mac,
}

impl Envelope for Ends {
    const HEAD: usize = 18;

    fn close(&self, datagram: &Datagram<'_>, _: &mut RawName, head: &mut [u8; HEAD_MAX]) -> libc::socklen_t {
        // A name of one byte is none that a packet socket takes.
        let RailAddress::Ethernet(to) = datagram.to else { return 1 };
        let group = datagram.parts.first().and_then(|part| group_of(part)).unwrap_or_default();
        head[..6].copy_from_slice(&to.0);
        head[6..12].copy_from_slice(&self.own.0);
        head[12..14].copy_from_slice(&TAG_ETHERTYPE.to_be_bytes());
        head[14..16].copy_from_slice(&(group.0 & VLAN).to_be_bytes());
        head[16..].copy_from_slice(&ETHERTYPE.to_be_bytes());
        0
    }

    fn open<'b>(
        &self,
        header: &libc::msghdr,
        _: &RawName,
        bytes: &'b mut [u8],
    ) -> Option<(RailAddress, &'b mut [u8])> {
        let (ends, frame) = bytes.split_at_mut_checked(HEADER_BYTES)?;
        let from = Mac(*ends[6..].first_chunk()?);
        let beside: Auxiliary = control_of(header, libc::SOL_PACKET, PACKET_AUXDATA)?;
        let is_tagged = beside.status & TP_STATUS_VLAN_VALID != 0;
        let is_its_group = group_of(frame).is_some_and(|group| group.0 == beside.vlan_tci & VLAN);
        (is_tagged && is_its_group && from.is_unicast()).then_some((RailAddress::Ethernet(from), frame))
    }
}

fn link_address() -> libc::sockaddr_ll {
    // SAFETY: plain C data for which zero bytes are a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address
}

/// Lets through packets of one type, with a tag and our protocol: a rail takes what has come for this machine alone.
/// What is loaded from below zero is not of the packet, but what the kernel knows of it.
fn attach_filter(socket: impl AsFd, packet_type: u8) -> io::Result<()> {
    let known = |what: libc::c_int| (libc::SKF_AD_OFF + what) as u32;
    let mut steps = [
        step(LOAD_HALF, 0, 0, 12),
        step(IF_EQUAL, 0, 5, ETHERTYPE.into()),
        step(LOAD_WORD, 0, 0, known(libc::SKF_AD_VLAN_TAG_PRESENT)),
        step(IF_EQUAL, 3, 0, 0),
        step(LOAD_WORD, 0, 0, known(libc::SKF_AD_PKTTYPE)),
        step(IF_EQUAL, 0, 1, packet_type.into()),
        step(RETURN, 0, 0, u32::MAX),
        step(RETURN, 0, 0, 0),
    ];
    filter::attach(socket, &mut steps)
}

#[cfg(test)]
mod tests;
