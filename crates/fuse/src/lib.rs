//! The FUSE side: mounting, negotiation, passthrough, the adapter to the engine, and the transports that read requests
//! and write replies.
//!
//! **Invariant:** only this crate names `fuser`, which negotiates, notifies, and mounts for users without
//! privilege. Requests are read from its descriptor by our own loops and parsed by `fsstack-wire`.

pub mod adapter;
mod convert;
pub mod mount;
mod negotiate;
pub mod notify;
pub mod transport;
pub mod unmount;

pub use adapter::{Adapter, ControlFile, ControlKeys, Outcome, Serve, Setter, Timeouts};
pub use adapter::{
    CallProfile, CallTotals, CallWatch, CallerKey, CallerRow, LONGEST_PATH, LoggedCalls, SlowCall,
};
pub use mount::{Adopted, Granted, MountError, Mounted, Plan};
pub use negotiate::known_flags;
pub use transport::scheduling::Scheduling;
pub use transport::{Closer, LockWait, OpenTransport, Paused, Pauser, StillInside, Transport};
