//! nfs-ganesha over a directory on loopback, or over a volume in the network of a GlusterFS lab: NFSv4 only, so that it
//! needs neither a portmapper nor a bus.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cleanup::Entry;
use crate::daemon::{self, Process};
use crate::gluster::{Gluster, Volume, server};
use crate::network::{self, within};
use crate::{must, needs};

/// Time limit for the server to start, and to end.
const SERVER_START_TIMEOUT: Duration = Duration::from_secs(60);
const PROGRAM: &str = "ganesha.nfsd";
/// Makes its C library keep buffers of reads. By default it may map and unmap each of 128 KiB, in some runs and not in
/// others: that took three times the CPU time of the rest of a read.
const BUFFERS_STAY: &str = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824";
/// Name of the export below the server's root.
pub const ROOT: &str = "t";
/// Beginning of the server's parameters, as `fsstack nfs show` prints them.
const SHOWN_CORE: &str = "NFS_CORE_PARAM {";
/// Part of every handle, so always the same.
const EXPORT_ID: u32 = 20;

/// Plug-in that exports directories, and its Debian package.
pub const VFS_PLUGIN: (&str, &str) = ("ganesha/libfsalvfs.so", "nfs-ganesha-vfs");

/// Plug-in that exports volumes of GlusterFS, and its Debian package.
pub const VOLUME_PLUGIN: (&str, &str) = ("ganesha/libfsalgluster.so", "nfs-ganesha-gluster");

/// A server, stopped on drop.
#[derive(Debug)]
pub struct Ganesha {
    /// Exports in its configuration.
    exports: String,
    home: PathBuf,
    address: SocketAddr,
    /// Namespaces of the server and of its clients, if they have their own.
    networks: Option<(PathBuf, PathBuf)>,
    server: Option<Child>,
    // Dropped in this order: what is left of the server, then its files.
    _ended: Entry,
    _home: Entry,
}

impl Ganesha {
    /// Checks whether a server of directories can run here.
    pub fn able() -> Result<(), needs::Skip> {
        Self::able_with(VFS_PLUGIN)
    }

    /// Checks whether a server of volumes can run here.
    pub fn able_for_volumes() -> Result<(), needs::Skip> {
        Self::able_with(VOLUME_PLUGIN)
    }

    fn able_with((plugin, package): (&str, &str)) -> Result<(), needs::Skip> {
        needs::root()?;
        let found = needs::program(PROGRAM).and_then(|()| needs::library(plugin));
        found.map_err(|skip| needs::Skip::because(format!("{skip} (package {package})")))
    }

    /// Starts a server for `export`, with its files in `home`.
    #[track_caller]
    pub fn serve(export: &Path, home: &Path) -> Self {
        must(Self::try_serve(export, home), "starting nfs-ganesha")
    }

    /// Like `serve`, but returns the reason of a failure.
    pub fn try_serve(export: &Path, home: &Path) -> Result<Self> {
        Self::try_serve_keeping(0, export, home)
    }

    /// Starts a server that caches attributes for `seconds`.
    pub fn try_serve_keeping(seconds: u16, export: &Path, home: &Path) -> Result<Self> {
        let exports = format!(
            "EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4;
               Transports = TCP; Attr_Expiration_Time = {seconds}; }}
             {SHOWN_CORE} Getattrs_In_Complete_Read = false; }}
             EXPORT {{ Export_Id = {EXPORT_ID}; Path = {}; Pseudo = /{ROOT}; FSAL {{ Name = VFS; }} }}\n",
            export.display()
        );
        Self::started(exports, home, None)
    }

    /// Starts a server in the network of a lab, which serves a volume as a client of its own (FSAL GLUSTER).
    pub fn try_serve_volume(lab: &Gluster, volume: Volume, home: &Path) -> Result<Self> {
        let exports = format!(
            "EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4;
               Transports = TCP; Attr_Expiration_Time = 0; }}
             {SHOWN_CORE} Getattrs_In_Complete_Read = false; }}
             EXPORT {{ Export_Id = {EXPORT_ID}; Path = /; Pseudo = /{ROOT};
               FSAL {{ Name = GLUSTER; Hostname = {}; Volume = {volume}; Glfs_Log = {}/gfapi.log; }} }}\n",
            network::SERVER,
            home.display()
        );
        Self::started(exports, home, Some(lab.networks()))
    }

    /// Starts a server with `block`: its parameters and only export, as an operator would configure them.
    #[track_caller]
    pub fn serve_block(block: &str, home: &Path) -> Self {
        must(Self::started(block.to_owned(), home, None), "starting nfs-ganesha")
    }

    fn started(exports: String, home: &Path, networks: Option<(PathBuf, PathBuf)>) -> Result<Self> {
        let (files, ended) = (Entry::dir(home)?, Entry::ganesha(home)?);
        // Free at the moment; no other program here is likely to take it.
        let ip = match networks {
            Some(_) => network::SERVER.parse()?,
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let own = networks.as_ref().map(|(own, _)| own.as_path());
        let address = within(own, || TcpListener::bind((ip, 0))?.local_addr())?;
        let (home, server) = (home.to_owned(), None);
        let mut ganesha = Self { exports, home, address, networks, server, _ended: ended, _home: files };
        ganesha.start()?;
        Ok(ganesha)
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Namespace of its clients, if that is not ours.
    #[must_use]
    pub fn network(&self) -> Option<&Path> {
        self.networks.as_ref().map(|(_, clients)| clients.as_path())
    }

    /// Its process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Restarts it; `between` runs while it is down.
    #[track_caller]
    pub fn restart(&mut self, between: impl FnOnce()) {
        must(self.stop(), "stopping nfs-ganesha");
        between();
        must(self.start(), "starting nfs-ganesha again");
    }

    /// Restarts it, so that neither it nor its client of a volume remembers anything.
    pub fn try_restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start()
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.join("log")).unwrap_or_default()
    }

    fn start(&mut self) -> Result<()> {
        let (config, log) = (config_of(&self.home), self.home.join("log"));
        fs::create_dir_all(self.home.join("recovery"))?;
        fs::write(&config, self.config())?;
        let own = self.networks.as_ref().map(|(own, _)| own.clone());
        let mut command = Command::new(if own.is_some() { "nsenter" } else { PROGRAM });
        if let Some(own) = &own {
            // It becomes the server.
            command.arg(format!("--net={}", own.display())).arg(PROGRAM);
        }
        let server = command
            .env("GLIBC_TUNABLES", BUFFERS_STAY)
            .arg("-F")
            .args([Path::new("-f"), &config, Path::new("-L"), &log, Path::new("-p"), &self.home.join("pid")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context(PROGRAM)?;
        let server = self.server.insert(server);
        let began = Instant::now();
        while within(own.as_deref(), || TcpStream::connect(self.address)).is_err() {
            if let Some(ended) = server.try_wait()? {
                bail!("nfs-ganesha ended with {ended}: {}", fs::read_to_string(&log).unwrap_or_default());
            }
            if began.elapsed() > SERVER_START_TIMEOUT {
                bail!("nfs-ganesha does not listen: {}", fs::read_to_string(&log).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        // Nothing is pending: every request was answered.
        server.kill()?;
        server.wait()?;
        Ok(())
    }

    fn config(&self) -> String {
        // Blocks of the same name are not merged: a second one replaces the first.
        let core = format!(
            "{SHOWN_CORE} Protocols = 4; NFS_Port = {}; Bind_addr = {}; Enable_NLM = false;
             Enable_RQUOTA = false; Enable_UDP = false;",
            self.address.port(),
            self.address.ip()
        );
        let exports = self.exports.replacen(SHOWN_CORE, &core, 1);
        format!(
            "NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = {home}/recovery; Only_Numeric_Owners = true; Minor_Versions = 0,1,2;
               Delegations = false; }}
             NFS_KRB5 {{ Active_krb5 = false; CCacheDir = {home}/krb5; }}
             {exports}",
            home = self.home.display()
        )
    }
}

fn config_of(home: &Path) -> PathBuf {
    home.join("ganesha.conf")
}

/// The server started with the configuration in `home`.
fn started(home: &Path) -> Result<Option<Process>> {
    let config = config_of(home).display().to_string();
    let all = daemon::of_program(PROGRAM)?;
    Ok(all.into_iter().find(|process| server::arguments(*process).contains(&config)))
}

/// True if the server of `home` runs.
pub(crate) fn stands(home: &Path) -> bool {
    started(home).is_ok_and(|process| process.is_some())
}

/// Ends the server of `home`, if it runs.
pub(crate) fn end(home: &Path) -> Result<()> {
    started(home)?.map_or(Ok(()), Process::kill)
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        if let Err(e) = self.stop() {
            assert!(std::thread::panicking(), "nfs-ganesha was not stopped: {e:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;
    use crate::shell::{library, which};

    #[test]
    fn a_server_needs_the_plugin_of_its_exports_and_no_other() {
        needs!(root());
        let there = |(plugin, _): (&str, &str)| which(PROGRAM).is_some() && library(plugin).is_some();
        assert_eq!(Ganesha::able().is_ok(), there(VFS_PLUGIN));
        assert_eq!(Ganesha::able_for_volumes().is_ok(), there(VOLUME_PLUGIN));
        let skip = Ganesha::able_with(("ganesha/none.so", "nfs-ganesha-none")).unwrap_err().to_string();
        assert!(skip.contains("(package nfs-ganesha-none)"), "{skip}");
    }

    #[test]
    fn a_server_is_known_by_its_configuration_and_ended() {
        let home = tempfile::tempdir().unwrap();
        assert!(!stands(home.path()));
        fs::write(config_of(home.path()), "").unwrap();
        // A long-running process with the server's name.
        let mut other =
            Command::new("tail").arg0(PROGRAM).arg("-f").arg(config_of(home.path())).spawn().unwrap();
        let began = Instant::now();
        while !stands(home.path()) {
            assert!(began.elapsed() < SERVER_START_TIMEOUT, "it does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!stands(&home.path().join("of-another")));
        end(home.path()).unwrap();
        assert!(!stands(home.path()));
        other.wait().unwrap();
    }
}
