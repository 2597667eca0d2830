//! Settings of a mounted pool in words, as they would be typed: another version reads them with its own table of options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_pool::settings::Require;
use serde::{Deserialize, Serialize};

use crate::log::LogTarget;
use crate::options::{self, Origin, Typed};
use crate::raw::RawOptions;
use crate::settings::{MountFlags, Privilege, RunIn, Settings};

/// Settings, without the branches, which may have changed since the mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SettingsRow {
    source: Vec<u8>,
    mount_point: Vec<u8>,
    /// Names and values of the options.
    options: Vec<(String, String)>,
    /// Values that words do not hold: paths may be no text.
    fsname: Vec<u8>,
    config: Vec<Vec<u8>>,
    state_dir: Option<Vec<u8>>,
    log_file: Option<Vec<u8>>,
    /// Timeouts of names while every change is noticed.
    watched: (Duration, Duration),
    require: String,
    foreground: bool,
    flags: MountFlags,
    registry: Option<Vec<u8>>,
    given: Vec<String>,
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

impl SettingsRow {
    pub(crate) fn of(settings: &Settings) -> Self {
        let now = &settings.options;
        let value = |row: &options::Row| Some((row.name().to_owned(), row.get(now)?));
        // Paths may be no text: they are kept apart.
        let has_words = |(name, value): &(String, String)| !options::is_path(name) && !value.is_empty();
        Self {
            source: settings.source.as_bytes().to_vec(),
            mount_point: bytes(&settings.mount_point),
            options: options::keys().filter_map(value).filter(has_words).collect(),
            fsname: now.fsname.as_bytes().to_vec(),
            config: now.config.iter().map(|path| bytes(path)).collect(),
            state_dir: now.engine.state_dir.as_deref().map(bytes),
            log_file: match &now.log.target {
                LogTarget::File(path) => Some(bytes(path)),
                LogTarget::Syslog => None,
                LogTarget::Stderr => Some(Vec::new()),
            },
            watched: now.watched_timeouts,
            require: now.require.to_string(),
            foreground: now.run_in == RunIn::Foreground,
            flags: settings.flags,
            registry: settings.registry.as_deref().map(bytes),
            given: settings.given.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// The settings, without branches.
    ///
    /// # Errors
    /// One line: an option that this program does not know, or not with this value.
    pub(crate) fn settings(&self) -> Result<Settings, String> {
        let mut raw = RawOptions::default();
        for (name, value) in &self.options {
            let unknown = || format!("option {name}={value}: unknown to this program");
            let row = options::find(name).ok_or_else(unknown)?;
            let typed = Typed { name, value: Some(OsStr::new(value)), origin: Origin::CommandLine };
            options::apply(&mut raw, row, &typed)?;
        }
        let mut now = raw.options;
        now.fsname = OsString::from_vec(self.fsname.clone());
        now.config = self.config.iter().map(|file| path(file)).collect();
        now.engine.state_dir = self.state_dir.as_deref().map(path);
        now.log.target = match self.log_file.as_deref() {
            None => LogTarget::Syslog,
            Some([]) => LogTarget::Stderr,
            Some(file) => LogTarget::File(path(file)),
        };
        now.watched_timeouts = self.watched;
        now.require = self.require.parse::<Require>().map_err(|_| format!("require={}", self.require))?;
        now.run_in = if self.foreground { RunIn::Foreground } else { RunIn::Background };
        let given = self.given.iter().filter_map(|name| options::find(name)).map(options::Row::name);
        Ok(Settings {
            source: OsString::from_vec(self.source.clone()),
            branches: Vec::new(),
            mount_point: path(&self.mount_point),
            options: now,
            flags: self.flags,
            privilege: Privilege::Root,
            registry: self.registry.as_deref().map(path),
            given: given.collect(),
            notices: Vec::new(),
            remarks: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::place_by_mlimit;
    use crate::settings::AccessTimes;

    fn settings(typed: &[(&str, &str)]) -> Settings {
        let mut raw = RawOptions::default();
        for (name, value) in typed {
            let row = options::find(name).unwrap();
            let typed = Typed { name, value: Some(OsStr::new(value)), origin: Origin::CommandLine };
            options::apply(&mut raw, row, &typed).unwrap();
        }
        if let Some(limit) = raw.mlimit {
            place_by_mlimit(&mut raw.options, limit);
        }
        let (given, options) = (raw.behind_o(), raw.options);
        Settings {
            source: "/a:/b".into(),
            branches: Vec::new(),
            mount_point: PathBuf::from(OsString::from_vec(b"/mnt/\xff".to_vec())),
            options,
            flags: MountFlags {
                read_only: true,
                access_times: AccessTimes::Never,
                directory_access_times: false,
                suid: true,
                devices: false,
                execute: true,
                synchronous: true,
                synchronous_directories: false,
            },
            privilege: Privilege::Root,
            registry: Some("/run/fsstack".into()),
            given,
            notices: Vec::new(),
            remarks: Vec::new(),
        }
    }

    #[test]
    fn every_value_is_the_same_for_the_next_program() {
        let typed: [&[(&str, &str)]; 5] = [
            &[],
            &[
                ("create", "epmfs>mfs>any"),
                ("minfreespace", "5%"),
                ("relocate", "lus"),
                ("relocate-speed", "100M"),
            ],
            &[("mlimit", "7G"), ("write-rules", r"/a=stacked:/b\:c\054d=passthrough"), ("max-threads", "9")],
            &[
                ("entry-timeout", "2.5"),
                ("log", "/var/log/x"),
                ("config", "/etc/x.toml"),
                ("state-dir", "/var/x"),
            ],
            &[
                ("locks", "branch"),
                ("nfs-export", "true"),
                ("seccomp", "kill"),
                ("metrics", "9190"),
                ("log", "stderr"),
            ],
        ];
        for typed in typed {
            let before = settings(typed);
            let row = SettingsRow::of(&before);
            let told = postcard::to_allocvec(&row).unwrap();
            let read: SettingsRow = postcard::from_bytes(&told).unwrap();
            assert_eq!(read, row);
            let mut after = read.settings().unwrap();
            // None is the default, by its name.
            after.options.max_threads =
                after.options.max_threads.filter(|_| before.options.max_threads.is_some());
            assert_eq!(format!("{after:?}"), format!("{before:?}"));
        }
    }

    #[test]
    fn flags_are_read_as_earlier_versions_wrote_them() {
        // One byte for each flag; access times were 0, 1 or 2 in this order.
        let flags = settings(&[]).flags;
        for (byte, access_times) in
            [AccessTimes::Relative, AccessTimes::Strict, AccessTimes::Never].iter().enumerate()
        {
            let flags = MountFlags { access_times: *access_times, ..flags };
            let old = [1, u8::try_from(byte).unwrap(), 0, 1, 0, 1, 1, 0];
            assert_eq!(postcard::from_bytes::<MountFlags>(&old).unwrap(), flags);
            assert_eq!(postcard::to_allocvec(&flags).unwrap(), old);
        }
        assert!(postcard::from_bytes::<MountFlags>(&[1, 3, 0, 1, 0, 1, 1, 0]).is_err());
    }

    #[test]
    fn an_option_that_is_not_known_is_named() {
        let mut row = SettingsRow::of(&settings(&[]));
        row.options.push(("of-tomorrow".to_owned(), "on".to_owned()));
        assert!(row.settings().unwrap_err().contains("of-tomorrow=on: unknown"));
        let mut row = SettingsRow::of(&settings(&[]));
        row.options.push(("locks".to_owned(), "elsewhere".to_owned()));
        assert!(row.settings().unwrap_err().contains("locks=elsewhere"));
    }
}
