//! The program from outside, without namespaces, a module a topic. What needs them is in `crates/campaign`.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod bench;
mod cli;
mod demo;
mod manager;
mod nodes;
mod up;
