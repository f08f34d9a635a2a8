//! Transaction layer packets, configuration space and capabilities of PCI Express.
