//! `cargo xtask lab`: GlusterFS in a container on this machine, its faults, and a pool over it.

mod fault;
mod pool;
mod show;

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand};
use fsstack_lab::MiB;
use fsstack_lab::debian::System;
use fsstack_lab::disks::{Disks, Stack};
use fsstack_lab::gluster::{Gluster, Plan, Purge, Steps, Volume};
use fsstack_lab::network::Rate;

use crate::install;

/// Arguments of `cargo xtask lab`.
#[derive(Debug, Args)]
pub(crate) struct Lab {
    /// Name of the lab.
    #[arg(long, default_value = "lab", value_parser = name, global = true)]
    name: String,
    #[command(subcommand)]
    errand: Errand,
}

#[derive(Debug, Subcommand)]
enum Errand {
    /// Make, start, mount and repair it as needed.
    Up(Up),
    /// Show its running parts.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Take it down, and check that nothing is left.
    Down {
        /// Also remove its files: brick images, volumes, the server's image if there is no other lab, and the fresh
        /// system for testing packages.
        #[arg(long)]
        purge: bool,
    },
    /// Run a program inside the server, as in `lab exec -- gluster volume info`.
    Exec {
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Mount a pool over its volumes.
    Pool(pool::OverVolumes),
    /// Cause or end a fault.
    #[command(subcommand)]
    Fault(fault::Fault),
}

/// Content of the lab.
#[derive(Debug, Args)]
struct Up {
    /// Volumes by their types: dtN distributed, rpN replicated, dpNrdK dispersed, dtN before one of those.
    #[arg(long, value_delimiter = ',', default_value = "dt8,dp8rd2,dt4rp2,dt2dp4rd1,rp2,rp3")]
    volumes: Vec<Volume>,
    /// Number of bricks, or disks; volumes share them.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    bricks: u8,
    /// Size of a brick, at least 300M; sparse.
    #[arg(long, default_value = "4G", value_parser = size)]
    brick_size: MiB,
    /// Limit the link between clients and server to this rate, as in 100mbit.
    #[arg(long)]
    wan: Option<Rate>,
    /// File systems on disks instead of volumes: xfs, ext4, btrfs-raid5[-lzo|-zstd], zfs-raidz[-lzjb|-gzip].
    #[arg(long, conflicts_with_all = ["volumes", "wan", "engine"])]
    ground: Option<Stack>,
    /// Engine that runs the server, instead of the first that works.
    #[arg(long, value_parser = ["podman", "docker", "chroot"])]
    engine: Option<String>,
}

impl Lab {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        let lab = Gluster::named(&self.name)?;
        match self.errand {
            Errand::Up(up) => up.run(&lab, &self.name),
            Errand::Status { json } => show::status(&lab, &Disks::all(&self.name)?, json),
            Errand::Down { purge } => {
                if purge {
                    // The system for testing packages.
                    System::forget()?;
                }
                let purge = if purge { Purge::Everything } else { Purge::Nothing };
                timed("down", || {
                    for disks in Disks::all(&self.name)? {
                        disks.down(purge, Steps::Shown)?;
                    }
                    lab.down(purge, Steps::Shown)
                })
            }
            Errand::Exec { command } => exec(&lab, &command),
            Errand::Pool(pool) => pool.run(&lab),
            Errand::Fault(fault) => fault.run(&lab),
        }
    }
}

impl Up {
    fn run(self, lab: &Gluster, name: &str) -> Result<()> {
        if let Some(stack) = self.ground {
            return self.other_ground(&Disks::of(name, stack)?);
        }
        if let Err(e) = install::packages(install::TO_GLUSTER) {
            // The lab works without some of them; it names the required ones.
            eprintln!("{e:#}");
        }
        able()?;
        let plan = Plan {
            volumes: self.volumes,
            bricks: usize::from(self.bricks),
            brick_size: self.brick_size,
            wan: self.wan,
            engine: self.engine,
        };
        timed("up", || lab.up(&plan, Steps::Shown))?;
        for volume in &plan.volumes {
            println!("{:<12} {}", volume.to_string(), lab.mount_point(*volume).display());
        }
        Ok(())
    }

    fn other_ground(&self, disks: &Disks) -> Result<()> {
        if let Err(e) = install::packages(disks.stack().needs()) {
            eprintln!("{e:#}");
        }
        let mut mounted = Vec::new();
        timed("up", || {
            mounted = disks.up(usize::from(self.bricks), self.brick_size, Steps::Shown)?;
            Ok(())
        })?;
        mounted.iter().for_each(|path| println!("{}", path.display()));
        Ok(())
    }
}

/// Checks all requirements for GlusterFS at once.
fn able() -> Result<()> {
    let missing = fsstack_lab::needs::gluster_ground();
    missing.map_err(|skip| anyhow::anyhow!("the lab {skip}"))
}

fn exec(lab: &Gluster, words: &[String]) -> Result<()> {
    let Some((program, arguments)) = words.split_first() else { bail!("no program was named") };
    let output =
        lab.inside(program)?.args(arguments).limit(Duration::from_secs(3600)).passed_on().output()?;
    ensure!(output.code == 0, "{program} ended with {}", output.code);
    Ok(())
}

fn timed(what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    work()?;
    println!("{what} in {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// A lab's name is part of paths and of the namespace's name.
fn name(text: &str) -> Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    ensure!(
        (1..=16).contains(&text.len()) && text.chars().all(plain),
        "a name has 1 to 16 letters, digits or -"
    );
    Ok(text.to_owned())
}

/// `4G`, `512M`.
fn size(text: &str) -> Result<MiB> {
    let (number, times) = match (text.strip_suffix(['G', 'g']), text.strip_suffix(['M', 'm'])) {
        (Some(number), _) => (number, 1024),
        (_, Some(number)) => (number, 1),
        _ => bail!("give a size as in 4G or 512M"),
    };
    let size = number.parse::<u64>().ok().and_then(|n| n.checked_mul(times));
    match size {
        Some(size) if (300..=16 << 20).contains(&size) => Ok(MiB(size)),
        _ => bail!("a brick has from 300M to 16384G"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names_are_checked() {
        assert_eq!(size("4G").unwrap(), MiB(4096));
        assert_eq!(size("300M").unwrap(), MiB(300));
        for wrong in ["", "4", "G", "299M", "4T", "99999999999999999999G", "1.5G", "-1G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert!(name("lab-2").is_ok());
        for wrong in ["", "a/b", "..", "a b", "seventeen-letters"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
