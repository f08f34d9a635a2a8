//! What the host sees of the function: registers, configuration space, memory buffer, interrupts, resets.

mod cmb;
pub(crate) mod config_space;
pub(crate) mod interrupts;
pub(crate) mod registers;
mod reset;
