//! The addresses and interfaces of this machine.

use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use crate::rail::Device;
use crate::rail::ethernet::Interface;

/// One address of each interface that is up and leads beyond this machine, IPv4 first: not loopback, not link-local. In
/// the order of the interfaces.
pub fn global_addresses() -> Vec<IpAddr> {
    let mut found: Vec<(String, IpAddr)> = Vec::new();
    each_interface(|name, interface| {
        let up = interface.ifa_flags & libc::IFF_UP as u32 != 0;
        let Some(address) = address_of(interface).filter(|address| up && is_global(address)) else { return };
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) if known.is_ipv6() && address.is_ipv4() => *known = address,
            Some(_) => {}
            None => found.push((name, address)),
        }
    });
    found.into_iter().map(|(_, address)| address).collect()
}

/// An interface of this machine, once for each of its addresses.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) index: u32,
    address: Option<IpAddr>,
    /// It is up and has a carrier.
    pub(crate) is_running: bool,
}

impl Found {
    /// Whether it is that of loopback, which has all addresses that are.
    pub(crate) fn is_loopback(&self) -> bool {
        self.address.is_some_and(|address| address.is_loopback())
    }

    /// Whether what is sent by a socket with this device leaves here.
    pub(crate) fn carries(&self, device: Device) -> bool {
        match device {
            Device::Any => false,
            Device::Holding(address) => self.address == Some(address),
            Device::Index(index) => self.index == index,
        }
    }
}

/// The interfaces of this machine.
pub(crate) fn interfaces() -> Vec<Found> {
    let mut found = Vec::new();
    each_interface(|name, interface| {
        let running = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        let is_running = interface.ifa_flags & running == running;
        let index = index_of(&name);
        found.push(Found { name, index, address: address_of(interface), is_running });
    });
    found
}

/// The kernel's number for an interface; 0 if there is none of this name.
fn index_of(name: &str) -> u32 {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: the name is a C string, which the call only reads.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// The names of Ethernet interfaces that are up and have a carrier.
pub fn ethernet_interfaces() -> Vec<String> {
    let mut found = Vec::new();
    each_interface(|name, _| {
        if !found.contains(&name) && Interface::find(&name).is_ok_and(|it| it.is_running) {
            found.push(name);
        }
    });
    found
}

/// Calls `visit` with the name of each address of each interface.
fn each_interface(mut visit: impl FnMut(String, &libc::ifaddrs)) {
    let mut list = ptr::null_mut();
    // SAFETY: the call fills `list` or fails.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return;
    }
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: a valid entry of the list until it is freed below.
        let interface = unsafe { &*entry };
        entry = interface.ifa_next;
        // SAFETY: names of interfaces are C strings.
        let name = unsafe { std::ffi::CStr::from_ptr(interface.ifa_name) }.to_string_lossy().into_owned();
        visit(name, interface);
    }
    // SAFETY: the list of the call above, freed once.
    unsafe { libc::freeifaddrs(list) };
}

fn address_of(interface: &libc::ifaddrs) -> Option<IpAddr> {
    if interface.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: not null, and every socket address begins with its family.
    match i32::from(unsafe { (*interface.ifa_addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says what it is; read unaligned, since only the general type's alignment is promised.
            let address = unsafe { interface.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { interface.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn is_global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !(address.is_loopback() || address.is_link_local() || address.is_unspecified())
        }
        IpAddr::V6(address) => {
            !(address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local())
        }
    }
}

/// Tests in a network namespace of their own.
#[cfg(test)]
pub(crate) mod own {
    use std::process::Command;

    /// Runs the ignored test of this name there. Whoever is not root gets a user namespace as well, in which it is.
    pub(crate) fn run(test: &str) {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.arg("--net").arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"]);
        let output = command.output().expect("the tests need unshare: make deps");
        let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.contains("1 passed"), "{told}");
    }

    /// Has `ip` do this.
    pub(crate) fn ip(words: &str) {
        let status =
            Command::new("ip").args(words.split(' ')).status().expect("the tests need iproute2: make deps");
        assert!(status.success(), "ip {words}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_never_among_them() {
        assert!(global_addresses().iter().all(|address| !address.is_loopback()));
    }
}
