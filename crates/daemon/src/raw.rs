//! Options as typed, before the system is checked: the last value counts, and policies are all kept.

use crate::options::{self, Effect, Origin, Typed};
use crate::outside::WATCHED_NAMES_TIMEOUT;
use crate::settings::{AccessTimes, Options};
use fsstack_pool::settings::PageCache;
use fsstack_pool::{Chain, Floor};
use std::collections::BTreeMap;
use std::ffi::OsStr;

/// A placement policy, with the option that chose it.
#[derive(Clone, Debug)]
pub(crate) struct PolicyChoice {
    pub(crate) name: String,
    pub(crate) spelled: String,
    pub(crate) origin: Origin,
    pub(crate) chain: Chain,
}

/// Spelling and source of a given option.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    spelled: String,
    origin: Origin,
}

/// Everything that was typed, over the defaults.
#[derive(Clone, Debug)]
pub struct RawOptions {
    pub(crate) options: Options,
    pub(crate) policies: Vec<PolicyChoice>,
    pub(crate) mlimit: Option<Floor>,
    /// With branches-mount-timeout and branches-mount-timeout-fail.
    pub(crate) waits_elsewhere: bool,
    pub(crate) must_be_elsewhere: bool,
    pub(crate) cache_files: Option<PageCache>,
    pub(crate) cache_writeback: bool,
    pub(crate) flags: RawFlags,
    pub(crate) given: BTreeMap<&'static str, Given>,
    notices: Vec<String>,
    remarks: Vec<String>,
}

impl Default for RawOptions {
    /// The defaults of the option table.
    fn default() -> Self {
        let mut raw = Self::over(Options::unset());
        for row in options::rows().filter(|row| !row.settled_later) {
            if let (Effect::Set(set), false) = (row.effect, row.default.is_empty()) {
                let typed =
                    Typed { name: row.name(), value: Some(OsStr::new(row.default)), origin: Origin::Config };
                let _ = set(&mut raw, &typed); // a test reads every default back
            }
        }
        Self::over(Options {
            watched_timeouts: (WATCHED_NAMES_TIMEOUT, WATCHED_NAMES_TIMEOUT),
            ..raw.options
        })
    }
}

/// A restriction whose opposite (`rw`, `suid`, `dev`) mount(8) and mount.fuse always add when it is not given. So the
/// opposite on the command line does not override the config file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restriction(Option<Origin>);

impl Restriction {
    pub(crate) fn set(&mut self, typed: &Typed<'_>) {
        self.0 = Some(typed.origin);
    }

    pub(crate) fn undo(&mut self, typed: &Typed<'_>) {
        self.0 = self.0.filter(|origin| *origin != typed.origin);
    }

    pub(crate) fn holds(self) -> bool {
        self.0.is_some()
    }
}

/// Mount flags.
#[derive(Clone, Debug)]
pub(crate) struct RawFlags {
    pub(crate) read_only: Restriction,
    pub(crate) access_times: AccessTimes,
    pub(crate) directory_access_times: bool,
    pub(crate) no_suid: Restriction,
    pub(crate) no_devices: Restriction,
    pub(crate) execute: bool,
    pub(crate) synchronous: bool,
    pub(crate) synchronous_directories: bool,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            read_only: Restriction::default(),
            access_times: AccessTimes::Relative,
            directory_access_times: true,
            no_suid: Restriction::default(),
            no_devices: Restriction::default(),
            execute: true,
            synchronous: false,
            synchronous_directories: false,
        }
    }
}

impl RawOptions {
    /// Adds a policy; the same option given again replaces its earlier value.
    pub(crate) fn choose_policy(&mut self, typed: &Typed<'_>, chain: Chain) {
        let name = typed.name.replace('_', "-");
        self.policies.retain(|before| before.name != name);
        self.policies.push(PolicyChoice { name, spelled: typed.to_string(), origin: typed.origin, chain });
    }

    /// Starts from existing options.
    pub(crate) fn over(options: Options) -> Self {
        Self {
            options,
            policies: Vec::new(),
            mlimit: None,
            waits_elsewhere: false,
            must_be_elsewhere: false,
            cache_files: None,
            cache_writeback: false,
            flags: RawFlags::default(),
            given: BTreeMap::new(),
            notices: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Records how an option was typed; the last one counts.
    pub(crate) fn note(&mut self, name: &'static str, typed: &Typed<'_>) {
        self.given.insert(name, Given { spelled: typed.to_string(), origin: typed.origin });
    }

    /// Sets our option `name` to `value`, for another program's option `typed`.
    pub(crate) fn take_as(&mut self, name: &str, value: &str, typed: &Typed<'_>) -> Result<(), String> {
        let Some(row) = options::find(name) else { return Ok(()) };
        if let Effect::Set(set) = row.effect {
            set(self, &Typed { name, value: Some(OsStr::new(value)), origin: typed.origin })?;
            self.note(row.name(), typed);
        }
        Ok(())
    }

    /// True if an option was given.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Spelling of a given option.
    pub(crate) fn spelled(&self, name: &str) -> &str {
        self.given.get(name).map_or("", |given| &given.spelled)
    }

    /// Source of a given option.
    pub(crate) fn origin(&self, name: &str) -> Option<Origin> {
        self.given.get(name).map(|given| given.origin)
    }

    /// Options given after `-o`.
    pub(crate) fn behind_o(&self) -> Vec<&'static str> {
        let typed = self.given.iter().filter(|(_, given)| given.origin == Origin::CommandLine);
        typed.map(|(name, _)| *name).collect()
    }

    /// Adds a notice for the user.
    pub(crate) fn notice(&mut self, text: String) {
        if !self.notices.contains(&text) {
            self.notices.push(text);
        }
    }

    /// Adds a line for the log alone.
    pub(crate) fn remark(&mut self, text: &str) {
        self.remarks.push(text.to_owned());
    }

    pub(crate) fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}
