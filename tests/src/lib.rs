//! Tests of the pool through real parts, one target a tier; `cargo xtask test` runs them.
//!
//! | target | tier | needs |
//! |---|---|---|
//! | `engine` | unit | nothing: the engine on temporary directories, a file an operation |
//! | `model` | model | nothing for a plain directory, root and /dev/fuse for the pool |
//! | `compare` | compare | root, /dev/fuse, loop devices: random calls as on a local disk, beside jobs, deaths and lost branches |
//! | `faults` | faults | the feature `fault`: every system call fails once |
//! | `mounted` | mounted | root and /dev/fuse: real mounts, real programs |
//! | `nfs` | nfs | root, nfs-ganesha |
//! | `nfs-guest` | nfs-guest | root, QEMU, a kernel of the distribution: what is in `bin/guest` runs there |
//! | `posix` | posix | root, /dev/fuse, loop devices: the public suites |
//! | `lab` | lab | root, /dev/fuse, loop devices, GlusterFS's packages: volumes of every kind, and their faults |

pub mod events;
