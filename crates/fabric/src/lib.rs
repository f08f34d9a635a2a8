//! Fabric addresses, windows and grants.
