//! Seeds that a change must pass, a module a kind of world: `cargo test -p causeway-sim --test sim liars` runs one.

mod crowd;
mod fleet;
mod liars;
mod managed;
mod rogue;
mod runs;
mod tree;
