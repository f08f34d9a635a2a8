//! What the host sees of the function, and what it does with that: registers, configuration space, memory buffer,
//! interrupts; enabling, shutting down, resets.

pub(crate) mod cmb;
pub(crate) mod config_space;
mod enable;
pub(crate) mod interrupts;
pub(crate) mod registers;
