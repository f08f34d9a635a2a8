//! Wire formats and constants of NVMe and NBD.
