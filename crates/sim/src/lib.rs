//! Virtual time, network and disks, faults and checkers.
