//! What goes to and comes from the host's memory, and by which lists.

mod dma;
mod prp;
mod sgl;
