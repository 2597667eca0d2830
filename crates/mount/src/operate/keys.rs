//! The keys of `fsstack get` and `set`: options of the mount, how each reads now, and how those change that can.

use crate::raw::RawOptions;
use crate::settings::{
    Degraded, Locks, OutOfBand, PageCache, Relocate, Settings, StatfsView, Transport, TransportScheduling,
    Verify, WritePath,
};
use crate::values;
use fsstack_engine::rules::Rules;
use fsstack_engine::settings::Relocation;
use fsstack_pool::{Chain, Floor, Printable, Size};
use std::num::NonZeroUsize;
use std::time::Duration;

/// A key by the name of its option.
pub(super) struct KeyRow {
    pub(super) name: &'static str,
    /// Its value as it would be typed.
    pub(super) get: fn(&Settings) -> String,
    /// Takes over what was typed; None: it is settled when the pool is mounted.
    pub(super) set: Option<fn(&mut Settings, &RawOptions)>,
}

const fn live(
    name: &'static str,
    get: fn(&Settings) -> String,
    set: fn(&mut Settings, &RawOptions),
) -> KeyRow {
    KeyRow { name, get, set: Some(set) }
}

const fn settled(name: &'static str, get: fn(&Settings) -> String) -> KeyRow {
    KeyRow { name, get, set: None }
}

/// Options that say how to mount, and leave nothing behind that could be asked for.
#[cfg(test)]
pub(super) const NO_KEYS: [&str; 5] = ["mlimit", "require", "branches-timeout", "nonempty", "foreground"];

/// Every key, in the order of the documentation.
pub(super) const KEYS: &[KeyRow] = &[
    live(
        "create",
        |now| now.create.to_string(),
        |now, raw| {
            if let Some(choice) = raw.policies.last() {
                now.create = choice.chain.clone();
            }
        },
    ),
    live("minfreespace", |now| now.floor.to_string(), |now, raw| now.floor = raw.floor.or(now.floor)),
    live(
        "min-inodes",
        |now| now.min_inodes.to_string(),
        |now, raw| now.min_inodes = raw.min_inodes.or(now.min_inodes),
    ),
    live(
        "relocate",
        |now| match now.relocate {
            Relocate::Off => "off".to_owned(),
            Relocate::On if now.relocate_policy == roomiest() => "on".to_owned(),
            Relocate::On => now.relocate_policy.to_string(),
        },
        |now, raw| {
            now.relocate = raw.relocation();
            now.relocate_policy = raw.relocate_policy.or(roomiest());
        },
    ),
    live(
        "relocate-verify",
        |now| {
            let name = match now.relocate_verify {
                Verify::Size => "size",
                Verify::Content => "checksum",
            };
            name.to_owned()
        },
        |now, raw| now.relocate_verify = raw.relocate_verify.or(now.relocate_verify),
    ),
    live(
        "relocate-speed",
        |now| now.relocate_speed.map_or_else(|| "0".to_owned(), |speed| Size(speed.get()).to_string()),
        |now, raw| now.relocate_speed = raw.relocate_speed.or(now.relocate_speed),
    ),
    live(
        "write-path",
        |now| now.write_path.name().to_owned(),
        |now, raw| now.write_path = raw.write_path.or(now.write_path),
    ),
    live(
        "write-rules",
        |now| now.write_rules.to_string(),
        |now, raw| now.write_rules = raw.write_rules.or(Rules::default()),
    ),
    live(
        "page-cache",
        |now| {
            let name = match now.page_cache {
                PageCache::Off => "off",
                PageCache::On => "on",
                PageCache::Writeback => "writeback",
            };
            name.to_owned()
        },
        |now, raw| now.page_cache = raw.page_cache.or(now.page_cache),
    ),
    live(
        "passthrough-headroom",
        |now| now.passthrough_headroom.to_string(),
        |now, raw| now.passthrough_headroom = raw.passthrough_headroom.or(now.passthrough_headroom),
    ),
    live(
        "attr-timeout",
        |now| seconds(now.attr_timeout),
        |now, raw| now.attr_timeout = raw.attr_timeout.or(now.attr_timeout),
    ),
    live(
        "entry-timeout",
        |now| seconds(now.entry_timeout),
        |now, raw| {
            now.entry_timeout = raw.entry_timeout.or(now.entry_timeout);
            now.watched_timeouts.0 = raw.entry_timeout.or(now.watched_timeouts.0);
        },
    ),
    live(
        "negative-timeout",
        |now| seconds(now.negative_timeout),
        |now, raw| {
            now.negative_timeout = raw.negative_timeout.or(now.negative_timeout);
            now.watched_timeouts.1 = raw.negative_timeout.or(now.watched_timeouts.1);
        },
    ),
    settled("out-of-band", |now| {
        let name = match now.out_of_band {
            OutOfBand::Watch => "watch",
            OutOfBand::Timeout => "timeout",
            OutOfBand::Never => "never",
        };
        name.to_owned()
    }),
    live(
        "branch-timeout",
        |now| seconds(now.branch_timeout),
        |now, raw| now.branch_timeout = raw.branch_timeout.or(now.branch_timeout),
    ),
    live(
        "branch-inflight",
        |now| now.branch_inflight.to_string(),
        |now, raw| now.branch_inflight = raw.branch_inflight.or(now.branch_inflight),
    ),
    live(
        "degraded",
        |now| {
            let name = match now.degraded {
                Degraded::Strict => "strict",
                Degraded::Read => "read",
            };
            name.to_owned()
        },
        |now, raw| now.degraded = raw.degraded.or(now.degraded),
    ),
    settled("transport", |now| {
        let name = match now.transport {
            Transport::Auto => "auto",
            Transport::Ring => "ring",
            Transport::Dev => "dev",
        };
        name.to_owned()
    }),
    settled("door-scheduling", |now| {
        let name = match now.transport_scheduling {
            TransportScheduling::Auto => "auto",
            TransportScheduling::Idle => "idle",
            TransportScheduling::Nice => "nice",
            TransportScheduling::Plain => "plain",
        };
        name.to_owned()
    }),
    settled("max-threads", |now| {
        now.max_threads.map_or(values::DEFAULT_THREADS, NonZeroUsize::get).to_string()
    }),
    settled("max-write", |now| Size(u64::from(now.max_write)).to_string()),
    live(
        "statfs",
        |now| {
            let name = match now.statfs {
                StatfsView::All => "all",
                StatfsView::AsPlaced => "as-placed",
            };
            name.to_owned()
        },
        |now, raw| now.statfs = raw.statfs.or(now.statfs),
    ),
    settled("locks", |now| {
        let name = match now.locks {
            Locks::Local => "local",
            Locks::Branch => "branch",
        };
        name.to_owned()
    }),
    settled("nfs-export", |now| now.nfs_export.to_string()),
    settled("nfs-identity", |now| now.nfs_identity.map(|id| id.to_string()).unwrap_or_default()),
    settled("allow_other", |now| now.allow_other.to_string()),
    settled("default_permissions", |now| now.default_permissions.to_string()),
    settled("fsname", |now| Printable::os(&now.fsname).to_string()),
    settled("subtype", |now| now.subtype.clone()),
    settled("config", |now| {
        now.config.as_deref().map(|file| Printable::path(file).to_string()).unwrap_or_default()
    }),
    settled("state-dir", |now| {
        now.state_dir.as_deref().map(|dir| Printable::path(dir).to_string()).unwrap_or_default()
    }),
    settled("seccomp", |now| now.seccomp.name().to_owned()),
    settled("metrics", |now| now.metrics.map(|at| at.to_string()).unwrap_or_default()),
    settled("log", |now| now.log.target.to_string()),
    live(
        "log-level",
        |now| now.log.level.as_str().to_ascii_lowercase(),
        |now, raw| now.log.level = raw.log_level.or(now.log.level),
    ),
];

/// Sets the parts of `mlimit=`: a policy and no floor.
pub(super) fn set_mlimit(now: &mut Settings, limit: Floor) {
    now.create = Chain::mlimit(limit);
    now.floor = Floor::NONE;
}

/// Policy that `relocate=on` means.
fn roomiest() -> Chain {
    Relocation::to_the_roomiest().policy
}

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}

/// The paths by which a promise to the kernel was made when the pool was mounted.
pub(super) fn needs_passthrough(settings: &Settings) -> bool {
    settings.write_path == WritePath::Passthrough
        || settings.write_rules.iter().any(|rule| rule.how == WritePath::Passthrough.for_engine())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{OPTIONS, Shown};

    #[test]
    fn every_option_of_ours_is_a_key() {
        let ours = OPTIONS.iter().filter(|group| group.shown == Shown::InHelp).flat_map(|group| group.rows);
        for option in ours.filter(|option| !NO_KEYS.contains(&option.name())) {
            assert!(
                KEYS.iter().any(|row| row.name == option.name()),
                "{} is no key: add it to KEYS, or to NO_KEYS",
                option.name()
            );
        }
        for row in KEYS {
            assert_eq!(crate::options::find(row.name).map(crate::options::Row::name), Some(row.name));
        }
    }
}
