//! What can borrow: the NVMe driver and the NBD server.
