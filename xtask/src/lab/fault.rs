//! `lab fault`: causes or ends faults in a lab that is up.

use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use fsstack_lab::MiB;
use fsstack_lab::gluster::{Gluster, Volume, Which};

/// Fault to cause or end.
#[derive(Debug, Subcommand)]
pub(super) enum Fault {
    /// Kill one brick of a volume; `heal` starts it again.
    KillBrick {
        /// The volume.
        volume: Volume,
        /// Number of the brick, counted from 1.
        brick: usize,
    },
    /// Stop the whole server; `heal` starts it again.
    Stop,
    /// Freeze the server or one brick with its connections open; `thaw` ends it.
    Freeze {
        /// Only this volume's brick.
        #[arg(requires = "brick")]
        volume: Option<Volume>,
        /// Number of the brick, counted from 1.
        brick: Option<usize>,
    },
    /// Drop all packets between clients and server; `thaw` ends it.
    CutLink,
    /// Fill bricks, for all volumes on them; `thaw` frees the space.
    Fill {
        /// Numbers of the bricks, counted from 1.
        #[arg(required = true)]
        bricks: Vec<usize>,
        /// MiB to leave free.
        #[arg(long, default_value_t = 0, value_name = "MIB")]
        left: u64,
    },
    /// End every freeze, restore the link, free filled space.
    Thaw,
    /// Thaw, start what was stopped, and wait until nothing is left to heal.
    Heal {
        /// Maximum seconds to wait.
        #[arg(long, default_value_t = 60)]
        limit: u64,
    },
}

impl Fault {
    /// Runs the command.
    pub(super) fn run(self, lab: &Gluster) -> Result<()> {
        match self {
            Self::KillBrick { volume, brick } => lab.kill_brick(volume, brick)?,
            Self::Stop => lab.stop()?,
            Self::Freeze { volume: Some(volume), brick: Some(brick) } => {
                lab.freeze(Which::Brick(volume, brick))?
            }
            Self::Freeze { .. } => lab.freeze(Which::Server)?,
            Self::CutLink => lab.cut_link()?,
            Self::Fill { bricks, left } => {
                bricks.into_iter().try_for_each(|brick| lab.fill(brick, MiB(left)))?;
            }
            Self::Thaw => lab.thaw()?,
            Self::Heal { limit } => {
                lab.thaw()?;
                lab.heal(Duration::from_secs(limit))?;
            }
        }
        println!("done");
        Ok(())
    }
}
