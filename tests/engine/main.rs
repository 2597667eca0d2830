//! The engine on temporary directories: no FUSE, no daemon, milliseconds each.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

/// Counts allocations for `allocations`.
#[global_allocator]
static COUNTED: fsstack_sys::allocations::Counting = fsstack_sys::allocations::Counting;

mod allocations;
mod attributes;
mod calls;
mod copied_roots;
mod copy_range;
mod create;
mod data;
mod deep;
mod drain;
mod durable;
mod explain;
mod fixed_beside;
mod forget;
mod health;
mod hints;
mod identity;
mod ioctl;
mod link;
mod live;
mod lock;
mod lookup;
mod lookup_dot;
mod make;
mod metrics;
mod open;
mod outside;
mod passthrough_kernel;
mod pin;
mod readdir;
mod removed;
mod rename;
mod rename_dir;
mod reserve;
mod rights;
mod rmdir;
mod setattr;
mod settings_live;
mod space;
mod statfs;
mod sync;
mod test_bed;
mod threads;
mod unfit;
mod unlink;
mod xattr;
