//! `lab pool`: the pool as an operator would mount it, over volumes of the lab.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fsstack_lab::gluster::{Gluster, Volume};
use fsstack_lab::{mounts, shell::command};

use crate::exec;

/// Arguments of `lab pool`.
#[derive(Debug, Args)]
pub(super) struct OverVolumes {
    /// The branches in order; each volume is mounted in the lab.
    #[arg(long, value_delimiter = ',', default_value = "dt8,dp8rd2,dt4rp2,dt2dp4rd1")]
    volumes: Vec<Volume>,
    /// Options of mount.fsstack, as after -o.
    #[arg(long, short = 'o', default_value = "create=pfrd")]
    options: String,
    /// Unmount the pool instead.
    #[arg(long)]
    down: bool,
}

impl OverVolumes {
    /// Mounts the pool, or unmounts it.
    pub(super) fn run(self, lab: &Gluster) -> Result<()> {
        let target = lab.home().join("pool");
        if self.down {
            lab.book().unmount(&target)?;
            println!("no pool is mounted");
            return Ok(());
        }
        ensure!(mounts::at(&target)?.is_none(), "a pool is mounted there already: `lab pool --down` first");
        for volume in &self.volumes {
            let mounted = mounts::at(&lab.mount_point(*volume))?;
            mounted
                .with_context(|| format!("{volume} is not mounted: `lab up --volumes {volume}` mounts it"))?;
        }
        // Already built for tests.
        let built = std::env::var_os("FSSTACK_BIN").map(PathBuf::from);
        let helper = built.map_or_else(|| exec::build_helper("release"), Ok)?;
        std::fs::create_dir_all(&target)?;
        let branches = self.volumes.iter().map(|volume| lab.mount_point(*volume).display().to_string());
        let source = branches.collect::<Vec<_>>().join(":");
        lab.book().mount(&target)?;
        let run = command(helper).arg(source).arg(&target).args(["-o", &self.options]);
        println!("+ {}", run.line());
        run.run()?;
        println!("the pool is mounted at {}", target.display());
        Ok(())
    }
}
