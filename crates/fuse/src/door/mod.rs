//! The doors that requests come through.

pub mod dev;
pub mod device;
pub mod interrupts;
pub mod scheduling;
