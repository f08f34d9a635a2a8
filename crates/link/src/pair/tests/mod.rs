//! Nodes that lend and borrow, over a network that a test controls. Cards are killed and replaced, between any two
//! stores of the ledger; the ledgers stay. Each node is composed as a card is: a lobby, a channel for each peer, claims
//! and offers with their streams.

mod calls;
mod carrying;
mod copies;
mod entries;
mod hostile;
mod identity;
mod many;
mod mutations;
mod node;
mod notices;
mod opening;
mod rails;
mod revealing;
mod scripts;
mod shm;
mod slow;
mod spread;
mod steps;
mod tenancies;
mod world;

use node::*;
use world::*;
