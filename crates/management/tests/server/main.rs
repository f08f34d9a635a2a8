//! The manager's process as others meet it: a real server on a port of loopback, its files in a folder, and clients and
//! nodes that speak TLS, HTTP and WebSocket to it.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod agents;
mod client;
mod commands;
mod disk;
mod fabric;
mod interface;
mod joining;
mod making;
mod node;
mod scale;
