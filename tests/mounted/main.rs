//! Pools mounted by the real `mount.fsstack`: one file a subject.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod archives;
mod basic;
mod branch_modes;
mod builds;
mod calls;
mod caught_callers;
mod churn;
mod command;
mod databases;
mod dead_branches;
mod directories;
mod endings;
mod given_up;
mod handles;
mod handles_elsewhere;
mod handles_index;
mod handles_numbers;
mod handles_of_branches;
mod hung_branches;
mod large;
mod lifetime;
mod locks;
mod logs;
mod memory_maps;
mod missing_parts;
mod mount8;
mod moving;
mod names;
mod opens;
mod out_of_band;
mod out_of_reach;
mod parallel;
mod permissions;
mod refusals;
mod relocate;
mod schedules;
mod script;
mod set_id;
mod skeletons;
mod sources;
mod stress;
mod tools;
mod transports;
mod write_paths;
