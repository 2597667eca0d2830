//! Keys of `fsstack get`.

use serde::{Deserialize, Serialize};

/// Every key of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Keys {
    /// In the order of the documentation.
    pub keys: Vec<Key>,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Key {
    /// Its name, as behind `-o`.
    pub key: String,
    /// Its value now.
    pub value: String,
    /// When a change of it takes effect.
    pub changes: When,
    /// Purpose of the key.
    pub help: String,
    /// Other spellings of its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
}

impl Key {
    /// Whether `name` is one of its spellings; `-` and `_` are the same.
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
    /// At once.
    AtOnce,
    /// When the pool is mounted again.
    AtMount,
}
