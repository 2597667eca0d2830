//! Files of embedded databases: a page that something else has changed is an error, not the end of the daemon.

mod pages;

pub use pages::{Pages, Soundness};
