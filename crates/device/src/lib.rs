//! What can be lent: the Function trait and the NVMe controller.
