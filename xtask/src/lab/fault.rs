//! `lab fault`: break something of a lab that is up, or end what was broken.

use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use fsstack_lab::MiB;
use fsstack_lab::gluster::{Gluster, Volume, Which};

/// Part to break, or to mend.
#[derive(Debug, Subcommand)]
pub(super) enum Fault {
    /// End one brick of a volume as a crash would; `heal` starts it again.
    KillBrick {
        /// The volume.
        volume: Volume,
        /// Which of its bricks, counted from 1.
        brick: usize,
    },
    /// End the whole server; `heal` starts it again.
    Stop,
    /// Make the server, or one brick, stand still with its connections open; `thaw` ends it.
    Freeze {
        /// Only this volume's brick.
        #[arg(requires = "brick")]
        volume: Option<Volume>,
        /// Which of its bricks, counted from 1.
        brick: Option<usize>,
    },
    /// Cut the network between clients and server without a word to either; `thaw` mends it.
    CutLink,
    /// Take the space of bricks, for all volumes that have a part on them; `thaw` gives it back.
    Fill {
        /// Which bricks, counted from 1.
        #[arg(required = true)]
        bricks: Vec<usize>,
        /// How many MiB to leave free.
        #[arg(long, default_value_t = 0, value_name = "MIB")]
        left: u64,
    },
    /// End every freeze, mend the link, empty what was filled.
    Thaw,
    /// Thaw, start what was ended, and wait until nothing is left to heal.
    Heal {
        /// The most seconds to wait.
        #[arg(long, default_value_t = 60)]
        limit: u64,
    },
}

impl Fault {
    /// Does it.
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
