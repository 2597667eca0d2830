//! Names from the catalogue of a pool.

use serde::{Deserialize, Serialize};

/// Request for names from the catalogue: a page of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum CatalogueRequest {
    /// Names below a directory.
    Find {
        /// The directory, from the pool's root.
        #[serde(default)]
        dir: String,
        /// Pattern of the names, as a shell has them.
        #[serde(default)]
        name: Option<String>,
        /// Only names of this branch, by its path or its id.
        #[serde(default)]
        branch: Option<String>,
        /// Where the page before ended.
        #[serde(default)]
        after: Option<Vec<u8>>,
    },
    /// The object at a path, if the catalogue has it.
    Where {
        /// The path, from the pool's root.
        path: String,
    },
    /// Names of a branch that no other branch has.
    Lost {
        /// The branch's path, or its id.
        branch: String,
        /// Where the page before ended.
        #[serde(default)]
        after: Option<Vec<u8>>,
    },
}

/// Names from the catalogue, in the order of their paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CataloguePage {
    /// The branches whose names were asked for or compared with.
    pub branches: Vec<CatalogueBranch>,
    /// The names.
    pub names: Vec<CatalogueName>,
    /// Where the next page begins; null: there are no more.
    pub next: Option<Vec<u8>>,
}

/// Output of `fsstack du`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CatalogueUsage {
    /// Directories, each before those in it.
    pub directories: Vec<DirUsage>,
    /// The branches whose names were counted.
    pub branches: Vec<CatalogueBranch>,
}

/// Sizes below a directory, from the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DirUsage {
    /// Its path from the pool's root, for display; empty for the root.
    pub path: String,
    /// The bytes of the path in base64, where `path` is not the same bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// Names below it.
    pub names: u64,
    /// Sum of the sizes of the files below it; a file with several names counts with each.
    pub bytes: u64,
}

/// State of a branch in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CatalogueBranch {
    /// Its path.
    pub branch: String,
    /// Its durable id.
    pub id: u16,
    /// Whether it is a branch of the pool now.
    pub in_pool: bool,
    /// Whether all of its names are known. If not, some may be missing or outdated.
    pub complete: bool,
    /// Whether a walk over it has not ended.
    pub walking: bool,
    /// The time (UTC) up to which changes are surely in the catalogue; null: there is none.
    pub as_of: Option<String>,
}

/// A name in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CatalogueName {
    /// The path from the pool's root, for display: a byte that is no printable text is `\\` and three octal digits.
    pub path: String,
    /// The bytes of the path in base64, where `path` is not the same bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// `file`, `directory`, `symlink`, `fifo`, `socket` or `device`.
    pub kind: String,
    /// Permissions, in octal.
    pub mode: String,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes; 0 for a directory.
    pub size: u64,
    /// Time of last modification (UTC).
    pub modified: String,
    /// The same in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Paths of the branches that have it.
    pub branches: Vec<String>,
}
