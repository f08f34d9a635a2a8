//! Wire formats and constants of NVMe, NBD and vfio-user.
//!
//! The lowest vocabulary above `base`: `device` (the controller) and `host` (the driver, the NBD server, the vfio-user
//! sessions) speak it, everything between them carries it without looking inside. A fixed structure is a plain value
//! that can be viewed in place over bytes (zerocopy), in the byte order of its standard: little-endian for NVMe and
//! vfio-user, big-endian for NBD. Its size is asserted at compile time.
//!
//! Whatever comes from outside is an open value: a code that this crate does not know is kept and sent back as it
//! came, it has only no name. Formats of variable length are parsed once, completely, into views that cannot fail
//! later.
//!
//! Left out: behaviour, I/O, NVMe over Fabrics, Zoned Namespaces and Key Value structures, NBD's oldstyle
//! negotiation and the payloads of its experimental extensions, vfio-user's migration.
//!
//! Sources are cited as `NVMe 2.0 §…` (base specification), `NVM CS 1.0 §…` (NVM command set specification),
//! `NVMe PCIe 1.0 §…` (PCIe transport specification), `NBD «section»` (the protocol document of the Network
//! Block Device project, by section title) and `vfio-user 0.1 §…` (QEMU's interoperability document, by section title).

mod fields;

pub mod nbd;
pub mod nvme;
pub mod vfio_user;
