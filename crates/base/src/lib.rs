//! Time, ids and the storage types of the ledger.
