//! Whole programs between machines made of namespaces, a module a topic. All tests are threads of one process, see
//! `campaign::gate`.
//!
//!     cargo test -p causeway-campaign --test campaign w3_reload

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod api;
mod bench;
mod disks;
mod events;
mod managed;
mod managed_functions;
mod managed_rails;
mod managed_silence;
mod nbd_client;
mod s1_kill_series;
mod switches;
mod t1_chassis;
mod t1_namespaces;
mod t2_failing_disk;
mod t2_sealed;
mod t3_durability;
mod t3_three_nodes;
mod t4_flood;
mod t4_many_nodes;
mod t5_beside_tcp;
mod t5_groups;
mod t5_killed_early;
mod t6_nbd_model;
mod tools;
mod vm_attach;
mod vm_database;
mod vm_demo;
mod vm_generation;
mod vm_guests;
mod vm_hostile;
mod vm_libvirt;
mod vm_peer;
mod vm_power;
mod vm_removal;
mod vm_replaced;
mod vm_replug;
mod vm_resets;
mod vm_silence;
mod vm_slots;
mod vm_stays;
mod vm_trouble;
mod w1_ethernet;
mod w1_many_loans;
mod w2_functions;
mod w3_borrowing;
mod w3_identity;
mod w3_reload;
mod w4_restarts;
mod w5_events;
mod w5_examples;
mod w5_replaced;
mod w5_switch;
mod w6_ownership;
mod w7_rails;
mod w8_capture;
mod w9_discovery;
mod world;
mod x_bad_input;
