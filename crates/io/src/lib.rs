//! Real time: sockets, rings, files, the agent and the card's loop.
