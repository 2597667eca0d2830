//! Requests of operators to a running pool: HTTP and JSON over a Unix socket. Linux only.
//!
//! `api` has the types of requests and replies, `server` is the daemon's side, `client` the command's. Neither knows
//! how a pool works: the daemon passes an [`Operator`], whose methods are the requests. `registry` lists live pools;
//! `exports` and `holders` find what keeps an exported pool mounted.

mod host;
mod peer;
mod route;
mod status_page;

pub mod api;
pub mod client;
pub mod connections;
mod copies;
pub mod copying;
pub mod dead_mounts;
pub mod exports;
pub mod ganesha;
pub mod holders;
pub mod local_locks;
pub mod operator;
pub mod registry;
pub mod server;

pub use client::{Client, ClientError};
pub use connections::{Connections, NoConnections};
pub use copying::{CopyClient, Copying};
pub use operator::{Operator, Refusal, RefusalKind};
pub use server::{ListenAt, Listeners, Server};
