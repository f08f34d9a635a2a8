//! The composition of a card from its protocol cores.
