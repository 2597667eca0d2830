//! Classes of branches: `class=fast` in SOURCE, `@fast` in a placement rule.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest name of a class.
const LONGEST: usize = 32;

/// A word that several branches may share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(Arc<str>);

/// A word that is no name of a class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a class: write 1 to 32 letters, digits, `.`, `_` or `-`, as class=fast")]
pub struct BadClass;

impl Class {
    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl FromStr for Class {
    type Err = BadClass;

    fn from_str(text: &str) -> Result<Self, BadClass> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let fits = (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_good);
        if fits { Ok(Self(text.into())) } else { Err(BadClass) }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
