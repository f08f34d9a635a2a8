//! The table of commands: their states, their lines, their work for the medium.

pub(crate) mod cells;
pub(crate) mod command;
mod flow;
pub(crate) mod line;
mod media;
