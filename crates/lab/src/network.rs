//! Network namespaces: one with only a loopback, and optionally a slow link to a second one.
//!
//! No packet of the lab leaves the machine, and nothing outside can connect to it. The server's address is on the
//! loopback with and without a link, so a volume is the same in both cases.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cleanup::Standing;
use crate::shell::{Run, command};

/// The server's address inside the namespace.
pub const SERVER: &str = "10.77.7.2";

/// The clients' address at the other end of the slow link.
const CLIENT: &str = "10.77.7.1";

/// Both ends of the slow link have this name, each in its namespace.
const LINK: &str = "wan0";

/// A network namespace by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

/// A rate for the slow link, in bits a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

/// A text that is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no rate: give a number and kbit, mbit or gbit, as in 100mbit")]
pub struct NoRate(String);

impl FromStr for Rate {
    type Err = NoRate;

    fn from_str(text: &str) -> Result<Self, NoRate> {
        let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];
        let read = units.iter().find_map(|(unit, times)| {
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(*times)
        });
        // The least rate at which a TCP segment of the loopback's size still passes.
        read.filter(|rate| (64_000..=100_000_000_000).contains(rate))
            .map(Self)
            .ok_or_else(|| NoRate(text.into()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}kbit", self.0 / 1000)
    }
}

impl Namespace {
    /// The namespace called `name`, existing or not.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// True if it exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.path().exists()
    }

    /// Its inode number, as in `/proc/PID/ns/net` of its processes.
    pub fn inode(&self) -> Result<u64> {
        Ok(fs::metadata(self.path()).with_context(|| self.path().display().to_string())?.ino())
    }

    /// Makes or repairs it, with the loopback up and the server's address on it.
    pub fn ensure(&self, standing: &Standing) -> Result<()> {
        if self.exists() && self.ip(["link", "show", "lo"]).run().is_err() {
            // A name without a namespace: its maker was killed in between.
            remove_namespace(&self.path())?;
        }
        if !self.exists() {
            standing.namespace(&self.path())?;
            command("ip").args(["netns", "add", &self.name]).run()?;
        }
        self.ip(["link", "set", "lo", "up"]).run()?;
        self.ip(["addr", "replace", &format!("{SERVER}/32"), "dev", "lo"]).run().map(drop)
    }

    /// Makes or repairs the clients' namespace, and a link with that rate between the two.
    pub fn link(&self, clients: &Self, rate: Rate, standing: &Standing) -> Result<()> {
        if !clients.exists() {
            standing.namespace(&clients.path())?;
            command("ip").args(["netns", "add", &clients.name]).run()?;
        }
        clients.ip(["link", "set", "lo", "up"]).run()?;
        if self.ip(["link", "show", LINK]).run().is_err() {
            let peer = ["type", "veth", "peer", "name", LINK, "netns", &clients.name];
            self.ip(["link", "add", LINK]).args(peer).run()?;
        }
        for (end, address) in [(self, SERVER), (clients, CLIENT)] {
            end.ip(["addr", "replace", &format!("{address}/30"), "dev", LINK]).run()?;
            end.ip(["link", "set", LINK, "up"]).run()?;
            // The burst must hold one tick of the slowest kernel clock.
            let burst = (rate.0 / 8 / 100).max(64 << 10).to_string();
            let shape = ["rate", &rate.to_string(), "burst", &burst, "latency", "100ms"];
            command("tc")
                .args(["-n", &end.name, "qdisc", "replace", "dev", LINK, "root", "tbf"])
                .args(shape)
                .run()
                .context("the kernel gives no rate to a link (tbf)")?;
        }
        Ok(())
    }

    /// Drops all packets between clients and server.
    pub fn cut(&self) -> Result<()> {
        self.ip(["link", "set", self.wire(), "down"]).run().map(drop)
    }

    /// Restores the connection.
    pub fn mend(&self) -> Result<()> {
        self.ip(["link", "set", "lo", "up"]).run()?;
        self.ip(["link", "set", self.wire(), "up"]).run().map(drop)
    }

    /// True if packets are dropped.
    pub fn is_cut(&self) -> Result<bool> {
        let output = self.ip(["-o", "link", "show", self.wire()]).run()?.stdout;
        let flags =
            output.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(flags, _)| flags);
        Ok(!flags.split(',').any(|flag| flag == "UP"))
    }

    /// Runs a program in this network, otherwise in our namespaces.
    pub fn run(&self, program: &str) -> Run {
        command("nsenter").arg(format!("--net={}", self.path().display())).arg(program)
    }

    fn wire(&self) -> &'static str {
        if self.ip(["link", "show", LINK]).run().is_ok() { LINK } else { "lo" }
    }

    fn ip<const N: usize>(&self, words: [&str; N]) -> Run {
        command("ip").args(["-n", &self.name]).args(words)
    }
}

/// Runs `work` in the network namespace at `path`, on a thread of its own: sockets stay in the one they were made in.
///
/// # Errors
/// The namespace cannot be entered, or the error of `work`.
pub fn within<T: Send>(path: Option<&Path>, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(path) = path else { return work() };
    let namespace = fs::File::open(path)?;
    let inside = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    };
    let ended = thread::scope(|scope| scope.spawn(inside).join());
    ended.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// Removes a namespace and the links in it; processes in it keep it alive without its name.
pub(crate) fn remove_namespace(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let name = path.file_name().context("a namespace has a name")?;
    if command("ip").args(["netns", "del"]).arg(name).run().is_err() {
        // ip refuses a file that is not a namespace; unmounting it may have been enough.
        crate::mounts::detach(path)?;
        fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_tc_writes_them() {
        let read = |text: &str| text.parse::<Rate>().map(|rate| rate.to_string());
        assert_eq!(read("100mbit"), Ok("100000kbit".into()));
        assert_eq!(read("1gbit"), Ok("1000000kbit".into()));
        for wrong in
            ["", "100", "mbit", "1kbit", "-1mbit", "1.5gbit", "100000gbit", "99999999999999999999gbit"]
        {
            assert_eq!(read(wrong), Err(NoRate(wrong.into())));
        }
    }
}
