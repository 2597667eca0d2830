//! Keys of `fsstack get`.

use serde::{Deserialize, Serialize};

/// Keys of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Keys {
    /// In the order of the documentation.
    pub keys: Vec<Key>,
}

impl Keys {
    /// Value of the key `name`, if the pool has it.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.keys.iter().find(|key| key.key == name).map(|key| key.value.as_str())
    }
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Key {
    /// Its name, as in `-o`.
    pub key: String,
    /// Its value now.
    pub value: String,
    /// When a change takes effect.
    pub changes: When,
    /// Purpose of the key.
    pub help: String,
    /// Other spellings of the name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
}

impl Key {
    /// True if `name` is one of its spellings; `-` and `_` are equivalent.
    pub fn is_called(&self, name: &str) -> bool {
        let plain = |name: &str| name.replace('_', "-");
        std::iter::once(&self.key).chain(&self.also).any(|known| plain(known) == plain(name))
    }
}

/// When a change takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// Immediately.
    AtOnce,
    /// At the next mount.
    AtMount,
}
